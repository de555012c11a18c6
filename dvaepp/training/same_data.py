"""Check that data is the data that a model was trained on, by the checksum that every checkpoint carries.

The files of a known data set may lie on the disk in several forms, packed or plain. Their digests differ although they
hold the same images, so all digests of the same data set count as equal.
"""

import hashlib
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from dvaepp.data import Dataset, File, files
from dvaepp.errors import UsageError
from dvaepp.recipes.schema import DataConfig


def check_same_data(run_dir: Path | str, record: Mapping[str, Any], dataset: Dataset, source: DataConfig) -> None:
    """Refuse data that is not what the checkpoint with this record was trained on; `source` says where it came from."""
    trained_on = str(record.get("data_checksum") or "")
    known = set() if source.path is not None or source.memory else known_checksums(files(source.name))
    if trained_on in ("", dataset.checksum) or {trained_on, dataset.checksum} <= known:
        return
    remedy = "give the --data-dir of its training" if source.path is None else f"put back what {source.path} held then"
    if source.memory:
        remedy = "give it the data of its training"
    raise UsageError(
        f"{run_dir} was trained on {record.get('dataset')} with other files (checksum {trained_on[:12]}, now "
        f"{dataset.checksum[:12]} of {dataset.name}): {remedy}"
    )


def known_checksums(needed: list[File]) -> set[str]:
    """Every value that `Dataset.checksum` may have for these files, one for each choice of their forms.

    Stand-ins are left out because they hold other images, and so are forms of which only an md5 digest is known.
    """
    choices = [[f for f in file.forms if f.digest.startswith("sha256:") and not f.stand_in] for file in needed]
    joined = ("".join(form.digest.removeprefix("sha256:") for form in forms) for forms in product(*choices))
    return {hashlib.sha256(digests.encode()).hexdigest() for digests in joined}
