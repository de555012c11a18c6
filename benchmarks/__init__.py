"""Speed beside peers and limits, measured in one run; `python -m benchmarks [NAME ...] [--json] [--save]`.

Never imported by the package. One file per benchmark: its docstring says what is measured, `run()` returns a record.
"""
