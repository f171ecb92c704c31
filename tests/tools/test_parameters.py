"""`blobfeed params NAME` for a name that is none."""

from __future__ import annotations

import pytest
from blobfeed.tools.parameters import as_text
from blobfeed.workers.base.errors import ParameterError


def test_a_name_from_elsewhere_is_explained() -> None:
    with pytest.raises(ParameterError, match=r"'crop_size' \(it belongs in transform: transform={'crop_size': …}\)"):
        as_text("crop_size")
