"""A made-up study on disk: up to three settings, 21 arms, with numbers like those of real runs."""

import hashlib
import math
import zlib

import numpy as np
import pytest

from jprec import records

STEPS = {"hot": 600, "cold": 3000, "autoencoder": 1000}

#: setting -> (baseline loss, seed sd, guess, initial loss, margin)
LEVELS = {
    "hot": (0.0602, 0.0056, math.log(10), 2.9, 0.0028),
    "cold": (0.1744, 0.0090, math.log(10), 2.9, 0.0045),
    "autoencoder": (0.0119, 0.00022, 0.36, 0.355, 0.00011),
}

#: setting -> arm -> (role, expected, mean difference, sd of the difference, loss scale, updates)
ARMS = {
    "hot": {
        "fp32": ("baseline", None, 0, 0, None, None),
        "fp32_one_ulp": ("claim", "equivalent", -3e-5, 1.2e-4, None, None),
        "tf32": ("claim", "equivalent", 2e-5, 6e-4, None, None),
        "tf32_truncated": ("claim", "equivalent", -2e-4, 1.4e-3, None, None),
        "tf32@a100": ("claim", "equivalent", 1e-4, 7e-4, None, None),
        "mixed_bf16": ("claim", "equivalent", 1e-4, 9e-4, None, None),
        "mixed_fp16": ("claim", "equivalent", -1e-4, 7e-4, "dynamic", None),
        "mixed_fp16_underscaled": ("control", "different", 2.23, 0.02, "static", None),
        "fp32_underscaled": ("twin", "identical", 0, 0, "static", None),
        "mantissa2_truncated": ("report", None, 0.0142, 0.0061, None, None),
    },
    "cold": {
        "fp32": ("baseline", None, 0, 0, None, "fp32"),
        "tf32": ("claim", "equivalent", 1e-5, 2e-5, None, None),
        "mixed_bf16": ("claim", "equivalent", 4e-5, 3e-4, None, None),
        "pure_bf16": ("control", "different", 1.64, 0.06, None, "bf16"),
        "pure_fp16": ("report", None, 0.19, 0.02, None, None),
        "bf16_stochastic": ("claim", "equivalent", 9e-5, 9e-4, None, None),
        "bf16_kahan": ("claim", "equivalent", -5e-5, 4e-4, None, "bf16"),
    },
    "autoencoder": {
        "fp32": ("baseline", None, 0, 0, None, None),
        "mixed_fp16": ("claim", "equivalent", 1e-6, 2e-5, "dynamic", None),
        "mixed_fp16_underscaled": ("control", "different", 0.121, 0.006, "static", None),
        "fp32_underscaled": ("twin", "identical", 0, 0, "static", None),
    },
}

TITLES = {
    "hot": "digits, MLP 64-128-128-10, SGD with momentum 0.9, learning rate 0.05 with cosine decay",
    "cold": "digits, MLP 64-128-128-10, SGD with momentum 0.9, learning rate 0.0005",
    "autoencoder": "digits, autoencoder 64-64-16-64-64 with tanh, Adam, learning rate 0.003",
}

WHAT = {
    "fp32": "Full FP32 products, checked to be so.",
    "fp32_one_ulp": "One weight moved by one ulp: how chaotic training is by itself.",
    "tf32": "Operands of all products rounded to TF32, nearest, ties away.",
    "mixed_fp16_underscaled": "FP16 with a static loss scale that pushes gradients below 2^-24.",
    "pure_bf16": "Weights stored in BF16, the update rounded to nearest on store.",
}

#: tensor -> (mean, sd) of the normal distribution of exponents, share of zeros at first and at last
TENSORS = {
    "weights": ((-4.0, 1.6), (0.0, 0.0)),
    "activations": ((-2.2, 1.9), (0.34, 0.42)),
    "activation_gradients": ((-14.5, 3.4), (0.41, 0.66)),
    "weight_gradients": ((-12.5, 3.2), (0.05, 0.12)),
    "updates": ((-17.0, 3.0), (0.05, 0.08)),
}

#: Cells with exponent histograms; the more, the longer a page takes to draw.
WITH_HISTOGRAMS = (("hot", "fp32"), ("autoencoder", "mixed_fp16_underscaled"))

SCALES = (1, 8, 128, 32768)


def rng_for(*path):
    return np.random.default_rng(zlib.crc32("/".join(path).encode()))


def write_study(folder, *, only=tuple(ARMS), seeds=8, points=10, skip=(), change=None):
    """Writes the made-up study; `change(setting, arm, result)` may edit a result before that."""
    settings = [setting_entry(name, seeds) for name in only]
    records.write_json(
        folder / "study.json",
        {
            "schema": 1,
            "study": "converges",
            "question": "Does training in TF32 and in mixed precision converge like FP32?",
            "limits": "Small models, few classes and emulated arithmetic: it does not show what "
            "happens at scale, nor what a particular device does.",
            "command": "jprec study run converges --out runs/converges",
            "settings": settings,
            "environment": {
                "python": "3.11.7",
                "jax": "0.10.2",
                "backend": "cpu",
                "devices": ["cpu"],
                "device_count": 1,
                "x64": False,
                "flags": {},
            },
            "probes": [
                {
                    "name": "subnormals",
                    "question": "Are FP32 subnormals kept under jit?",
                    "answer": "no: 1e-40 times 1.5 comes out as 0",
                    "value": "flushed",
                },
                {
                    "name": "emulated_tf32",
                    "question": "Is the emulated TF32 product of 1.0001 and 1 exactly 1?",
                    "answer": "yes",
                    "value": True,
                },
            ],
        },
    )
    journal = records.Journal(folder / "journal.jsonl")
    for setting in settings:
        for arm in setting["arms"]:
            cell = f"{setting['name']}/{arm['name']}"
            if cell in skip:
                journal.append("failed", cell=cell, seconds=1.0)
                continue
            result = result_entry(setting, arm, points)
            if change:
                change(setting["name"], arm["name"], result)
            records.write_json(folder / "cells" / cell / "result.json", result)
            journal.append("finished", cell=cell, seconds=2.5)
    return folder


def setting_entry(name, seeds):
    arms = [
        {
            "name": arm,
            "policy": arm,
            "what": WHAT.get(arm, f"Products and storage as in {arm}."),
            "role": role,
            "expected": expected,
            "twin_of": "fp32" if role == "twin" else None,
        }
        for arm, (role, expected, *_) in ARMS[name].items()
    ]
    return {
        "name": name,
        "title": TITLES[name],
        "steps": STEPS[name],
        "seeds": list(range(100, 100 + seeds)),
        "margin": LEVELS[name][4],
        "margin_source": "half the standard deviation of 32 pilot seeds",
        "guess": LEVELS[name][2],
        "baseline": "fp32",
        "arms": arms,
    }


def result_entry(setting, arm, points):
    name, seeds = setting["name"], setting["seeds"]
    role, _, mean, sd, scale, updates = ARMS[name][arm["name"]]
    level, seed_sd, _, start, _ = LEVELS[name]
    base = level + seed_sd * rng_for(name, "fp32").normal(size=len(seeds))
    final = base + mean + sd * rng_for(name, arm["name"]).normal(size=len(seeds))
    first = start * (1 + 0.06 * rng_for(name, "initial").normal(size=len(seeds)))
    steps = np.linspace(0, STEPS[name], points).astype(int)
    fade = np.exp(-7.0 * (steps / steps[-1]) ** 0.7)[:, None]
    wobble = 1 + 0.03 * rng_for(name, "curve").normal(size=(points, len(seeds))) * (1 - fade)
    curve = np.where(fade == 1, first, final + (first - final) * fade) * wobble
    curve[-1] = final
    digest_of = "fp32" if role in ("baseline", "twin") else arm["name"]
    return {
        "schema": 1,
        "setting": name,
        "arm": arm["name"],
        "config": {},
        "emulated": True,
        "backend": "cpu",
        "seeds": seeds,
        "test_loss": final.tolist(),
        "initial_test_loss": first.tolist(),
        "test_accuracy": None,
        "weights_sha256": [
            hashlib.sha256(f"{name}{digest_of}{s}".encode()).hexdigest() for s in seeds
        ],
        "curve": {
            "step": steps.tolist(),
            "test_loss": curve.tolist(),
            "train_loss": [None, *(0.8 * curve[1:]).tolist()],
        },
        "loss_scale": scale_entry(scale, STEPS[name], len(seeds)),
        "histograms": histogram_entries(name, arm["name"])
        if (name, arm["name"]) in WITH_HISTOGRAMS
        else None,
        "updates": update_entry(name, arm["name"], updates),
    }


def scale_entry(kind, steps, seeds):
    if kind is None:
        return None
    if kind == "static":
        return {"log2": [[-18] * steps] * seeds, "skipped": [[0] * steps] * seeds}
    log2, skipped = [], []
    for seed in range(seeds):
        rng, scale, clean = rng_for("scale", str(seed)), 24, 0
        log2.append([])
        skipped.append([])
        for _ in range(steps):
            log2[-1].append(scale)
            overflow = scale > 17 or (scale == 17 and rng.random() < 0.04)
            skipped[-1].append(int(overflow))
            clean = 0 if overflow else clean + 1
            scale -= int(overflow)
            if clean == 100:
                scale, clean = scale + 1, 0
    return {"log2": log2, "skipped": skipped}


def bell(mean, sd, total):
    exponents = np.arange(math.floor(mean - 5 * sd), math.ceil(mean + 3 * sd) + 1)
    weights = np.exp(-0.5 * ((exponents - mean) / sd) ** 2)
    counts = np.round(total * weights / weights.sum()).astype(int)
    return exponents[counts > 0].tolist(), counts[counts > 0].tolist()


def histogram_entries(setting, arm):
    entries = []
    for step, which in ((0, 0), (STEPS[setting], 1)):
        for tensor, ((mean, sd), zero_share) in TENSORS.items():
            shift = -9 if setting == "autoencoder" and "gradients" in tensor else 0
            zeros = zero_share[which]
            if arm != "fp32" and "gradients" in tensor:
                zeros = 0.985
            total = 200_000
            exponents, counts = bell(mean + shift - 2 * which, sd, total * (1 - zeros))
            entries.append(
                {
                    "step": step,
                    "tensor": tensor,
                    "exponents": exponents,
                    "counts": counts,
                    "zeros": total - sum(counts),
                    "nonfinite": 0,
                    "total": total,
                    "flushed": {
                        str(s): sum(
                            c
                            for e, c in zip(exponents, counts, strict=True)
                            if e + math.log2(s) < -25
                        )
                        for s in SCALES
                    },
                }
            )
    return entries


def update_entry(setting, arm, fmt):
    if fmt is None:
        return None
    mean = {"fp32": 9.0, "fp16": -3.0, "bf16": -6.0}[fmt]
    exponents, counts = bell(mean, 2.6, 1_000_000)
    small = sum(c for e, c in zip(exponents, counts, strict=True) if e < -1)
    lost = {"bf16_kahan": 0, "bf16_stochastic": 0.97 * small}.get(arm, small)
    return {
        "format": fmt,
        "log2_ratio": exponents,
        "counts": counts,
        "zeros": 120_000,
        "lost": int(lost),
        "total": sum(counts) + 120_000,
    }


@pytest.fixture(scope="session")
def study_folder(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("converges"))


@pytest.fixture
def make_study(tmp_path):
    """Writes a study of its own: make_study(only=..., skip=..., change=...)."""
    return lambda **options: write_study(tmp_path / "study", **options)
