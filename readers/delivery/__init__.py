"""From a slot into the trainer's memory: NumPy, torch, CUDA."""

from __future__ import annotations

from .deliveries import make_delivery
from .delivery import Delivery, HostDelivery, Upcoming, as_numpy
from .loans import LOANS, Lendable, LentBlocks, SlotLoans
from .mean_images import load_mean_file, mean_image, mean_of
from .named_batches import NamedBatch, NamedBatches, TupleBatch
from .own_arrays import OwnArrays
from .tops import LengthsTop, Shape, Top, UnevenTop, describes_another, make_tops
from .value_checks import check_range, check_whole_numbers
