"""Retrieval by label: codes of models with RBM and directed priors beside linear hashes and raw pixels at equal bits.

Every method sees the same binarised images: the training set is searched, test images are the queries. Models are
table2.rbm and table2.marginal with one group of as many units as there are bits and two tanh layers. "reranked" orders
the nearest 1000 codes by posterior means; the precision of what comes after them is not measured, so it has no mAP.
All answer the same queries, so two of them are compared by the interval of their difference, query by query.

    python -m benchmarks.studies.retrieval --out retrieval.json            # six trainings; hours
    python -m benchmarks.studies.retrieval --steps 500 --bits 16 --out try.json
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.studies import record
from benchmarks.studies.runs import trained
from dvaepp import coding, runs
from dvaepp.codes import HammingIndex
from dvaepp.codes.hashing import LinearHash, itq, pca_sign, random_hyperplanes
from dvaepp.codes.retrieval import Interval, Ranking, by_pixels, interval, precision_at_k, quality
from dvaepp.data import load, subset

K = 100
CANDIDATES = 1000  # of the first stage
Pixels = npt.NDArray[np.float32]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dataset", default="mnist_dynamic")
    parser.add_argument("--bits", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--runs", type=Path, default=Path("runs/retrieval"))
    arguments = parser.parse_args()
    study = Study(arguments.dataset, arguments.queries)
    study.measure("raw pixels", None, by_pixels(study.database, study.queries))
    for bits in arguments.bits:
        study.hashes(bits)
        for recipe in ("table2.rbm", "table2.marginal"):
            study.model(arguments.runs, recipe, bits, arguments.steps)
        record.write(arguments.out, arguments, {"k": K, "rows": study.rows})
    for row in study.rows:
        value, low, high = row["precision"].values()
        print(f"{row['method']:32} {row['bits'] or '':>4} precision@{K} {value:.4f} ({low:.4f} to {high:.4f})")


class Study:
    """A labelled data set with its training set as database and test images as queries."""

    def __init__(self, dataset: str, num_queries: int) -> None:
        data = load(dataset)
        if not {"train", "test"} <= set(data.labels):
            raise SystemExit(f"{dataset} has no labels; take mnist_dynamic, caltech or cifar10")
        picked = subset(len(data.split("test")), num_queries)
        order = torch.randperm(len(data.split("train")), generator=torch.Generator().manual_seed(0))
        # ties go to the earlier row: a database in the order of its labels would favour some
        self.dataset, self.x, self.asked = dataset, data.images("train")[order], data.images("test", picked)
        self.labels = data.labels["train"][order].numpy()
        self.query_labels = data.labels["test"][picked].numpy()
        self.database: Pixels = self.x.flatten(1).numpy()
        self.queries: Pixels = self.asked.flatten(1).numpy()
        self.rows: list[dict[str, Any]] = []
        self.precisions: dict[tuple[str, int | None], npt.NDArray[np.float64]] = {}

    def measure(self, method: str, bits: int | None, ranking: Ranking) -> None:
        """A row for a method that ranks the whole database."""
        precisions: list[npt.NDArray[np.float64]] = []

        def noted(part: slice) -> npt.NDArray[np.int64]:
            found = ranking(part)
            precisions.append(self._precision(found[:, :K], part))
            return found

        found = quality(noted, self.labels, self.query_labels, K)
        self._add(method, bits, np.concatenate(precisions), found.mean_average_precision)

    def _precision(self, found: npt.NDArray[np.int64], part: slice) -> npt.NDArray[np.float64]:
        return precision_at_k(self.labels[found] == self.query_labels[part, None], K)

    def _add(self, method: str, bits: int | None, each: npt.NDArray[np.float64], average: Interval | None) -> None:
        ahead = {
            name: interval(each - other)._asdict()
            for (name, length), other in self.precisions.items()
            if length in (bits, None)
        }
        self.precisions[method, bits] = each
        row = {"method": method, "bits": bits, "precision": interval(each)._asdict(), "ahead of": ahead}
        self.rows.append(row | {"mean_average_precision": None if average is None else average._asdict()})

    def hashes(self, bits: int) -> None:
        x = self.database.astype(np.float64)
        hashes: dict[str, LinearHash] = {
            "random hyperplanes": random_hyperplanes(x, bits),
            "PCA, signs": pca_sign(x, bits),
            "ITQ": itq(x, bits),
        }
        for name, each in hashes.items():
            self.measure(name, bits, self._by_codes(each(x), each(self.queries.astype(np.float64))))

    def model(self, folder: Path, recipe: str, bits: int, steps: int) -> None:
        changes = {"model.groups": f"[{bits}]", "training.steps": steps}
        run = trained(folder, recipe, [f"dataset={self.dataset}", "linear=false"], changes)
        model = runs.load(run)
        codes, asked = coding.bits_of(model, self.x), coding.bits_of(model, self.asked)
        self.measure(f"{recipe}, codes", bits, self._by_codes(codes, asked))
        self._add(f"{recipe}, reranked", bits, self._reranked(model, codes, asked), None)

    def _by_codes(self, codes: npt.NDArray[np.bool_], asked: npt.NDArray[np.bool_]) -> Ranking:
        index = HammingIndex(codes.shape[1])
        index.add(codes)
        return lambda part: index.search(asked[part], len(index)).indices

    def _reranked(
        self, model: runs.Trained, codes: npt.NDArray[np.bool_], asked: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.float64]:
        index = HammingIndex(codes.shape[1])
        index.add(codes)
        candidates = index.search(asked, min(CANDIDATES, len(index))).indices
        best = index.rerank(coding.means_of(model, self.asked), candidates, K).indices
        return self._precision(best, slice(None))


if __name__ == "__main__":
    main()
