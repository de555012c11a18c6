"""Studies that train models: what their codes are good for. Each is one command that writes a JSON file.

python -m benchmarks.studies.retrieval --out retrieval.json
python -m benchmarks.studies.compression --out compression.json
python -m benchmarks.studies.quantizer --out quantizer.json
"""
