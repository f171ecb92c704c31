"""Maps the folders at the top of the checkout into one package: an installation adds one name to site-packages."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

from setuptools import Extension, find_packages, setup

ROOT = Path(__file__).parent
FOLDERS = ("tools", "trainer", "layers", "readers", "cluster", "supplies", "sources", "watching", "workers")

# Lower bounds only, and low ones: the package has to live beside a Caffe that was built against an older NumPy or
# protobuf. The lowest are for NumPy 1.26: with NumPy 2 simplejpeg has to be 1.7.3 at least. They can be installed
# together, and `make test-lowest` does so; what the other tests run with is pinned in constraints.txt.
# Before OpenCV 4.11 a JPEG that ends early is decoded as if it were whole; before Keras 3.8 `steps_per_epoch` repeats
# and loses batches; before textual-image 0.9 a terminal that does not tell its size is an error.
# Before h5py 3.12 the library locks the parts of a virtual data set with `locking: false` too, and puts zeros for those
# that it cannot lock. h5py 3.15 loses 387 bytes for each sample of varying length (3.14 and 3.16: 129).
RUNTIME = (
    "numpy>=1.26",
    "protobuf>=4.21.6",
    "h5py>=3.12,!=3.15.*",
    "pyzmq>=26.4",
    "msgspec>=0.18",
    "cloudpickle>=3.0; python_version < '3.14'",
    "cloudpickle>=3.1.2; python_version >= '3.14'",
    "xxhash>=3.2",
    "PyYAML>=6.0",
    "rich>=13.4",
    "typer>=0.19",
)

EXTRAS = {
    "torch": ("torch>=2.8",),
    "images": ("opencv-python-headless>=4.11.0.86", "simplejpeg>=1.7"),
    "lmdb": ("lmdb>=2.1",),
    "compression": ("deflate>=0.7", "hdf5plugin>=4.3", "numcodecs>=0.14"),
    "cloud": ("obstore>=0.11", "fsspec>=2024.2"),
    "zarr": ("zarr>=3.1.3", "google-crc32c>=1.6", "numcodecs>=0.14"),
    "parquet": ("pyarrow>=16",),
    "tensorboard": ("tensorboard>=2.18",),
    "keras": ("keras>=3.8",),
    "jax": ("jax>=0.4.35",),
    "report": ("plotly>=6.0", "textual-image>=0.9"),
    "tensorflow": ("tensorflow>=2.18",),
    "ray": ("ray>=2.10",),
}

ALL_BUT_TENSORFLOW = [each for extra, needed in EXTRAS.items() if extra != "tensorflow" for each in needed]

# What `make docs` needs, beside what is installed for the tests.
DOCS = ("mkdocs-material>=9.5",)


# What `make test` needs: every extra (TensorFlow's smaller edition, for the CPU alone, if there is one) and the tools.
TEST = (
    *ALL_BUT_TENSORFLOW,
    "build",
    "hypothesis",
    "boto3",
    "flask",
    "flask-cors",
    "moto[s3]>=5",
    "mypy",
    "prometheus_client",
    "psutil",
    "pytest>=8.4",
    "pytest-timeout",
    "pytest-xdist",
    "ray[train]",
    "ruff",
    "scikit-image",
    "scikit-learn",
    "setuptools>=77",
    "tensorflow-cpu>=2.18; platform_machine == 'x86_64' and python_version < '3.14'",
    "tqdm",
    "types-PyYAML",
    "types-protobuf",
    "wheel",
    # The frameworks that a DataLoader is tried under.
    "accelerate",
    "datasets",
    "lightning",
    "pytorch-ignite",
    "transformers",
)


def packages() -> list[str]:
    inside = [name for folder in FOLDERS for name in (folder, *(f"{folder}.{sub}" for sub in find_packages(folder)))]
    return ["blobfeed", *(f"blobfeed.{name}" for name in inside)]


def version() -> str:
    # Read, not imported: a build environment need not hold what the package imports.
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / "blobfeed" / "__init__.py").read_text(), re.MULTILINE)
    if found is None:
        raise ValueError('blobfeed/__init__.py has no line __version__ = "…"')
    return found[1]


# The extensions use the stable ABI alone, so one wheel serves every version of Python with a GIL; without one there is
# no stable ABI. They are optional: where one cannot be compiled, the package does without it.
HAS_STABLE_ABI = not sysconfig.get_config_var("Py_GIL_DISABLED")
STABLE_ABI = {
    "py_limited_api": HAS_STABLE_ABI,
    "define_macros": [("Py_LIMITED_API", "0x030B0000")] if HAS_STABLE_ABI else [],
    "optional": True,
}

EXTENSIONS = (
    Extension(
        "blobfeed.workers.loading._convert",
        ["workers/loading/convert.c"],
        extra_compile_args=["-O3", "-ffp-contract=off"],  # no fused operations: NumPy rounds after each
        **STABLE_ABI,
    ),
    Extension(
        "blobfeed.sources.images._crop",
        ["sources/images/crop.c"],
        libraries=["jpeg"],  # libjpeg-turbo: another libjpeg has no jpeg_crop_scanline
        **STABLE_ABI,
    ),
)

setup(
    name="blobfeed",
    version=version(),
    description="A multi-process input layer for Caffe nets and other trainers: whole batches, ready before asked for",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="blobfeed contributors",
    license_expression="BSD-2-Clause",
    license_files=["LICENSE*"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Intended Audience :: Developers",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.11",
    packages=packages(),
    package_dir={"blobfeed": "blobfeed", **{f"blobfeed.{folder}": folder for folder in FOLDERS}},
    package_data={"": ["py.typed", "*.pyi"]},
    ext_modules=list(EXTENSIONS),
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if HAS_STABLE_ABI else {},
    install_requires=list(RUNTIME),
    extras_require={
        **{extra: list(needed) for extra, needed in EXTRAS.items()},
        "all": [*ALL_BUT_TENSORFLOW, f"{EXTRAS['tensorflow'][0]}; python_version < '3.14'"],  # it has no wheels there
        "docs": list(DOCS),
        "test": list(TEST),
    },
    entry_points={"console_scripts": ["blobfeed = blobfeed.cli:main"]},
)
