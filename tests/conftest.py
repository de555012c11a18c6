"""One thread per test process: several processes with several OpenMP threads each slow everything ten-fold."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import torch  # noqa: E402

torch.set_num_threads(1)
