"""Caffe's messages, as far as they are supported, with Caffe's names, numbers and defaults.

A field that is not here is refused with its line. Numbers and defaults are those of caffe.proto in BVLC Caffe 1.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from .descriptors import Message, UInt, optional, repeated


class Phase(IntEnum):
    TRAIN = 0
    TEST = 1


class SolverMode(IntEnum):
    CPU = 0
    GPU = 1


class VarianceNorm(IntEnum):
    FAN_IN = 0
    FAN_OUT = 1
    AVERAGE = 2


class PoolMethod(IntEnum):
    MAX = 0
    AVE = 1


class EltwiseOp(IntEnum):
    PROD = 0
    SUM = 1
    MAX = 2


class NormalizationMode(IntEnum):
    FULL = 0
    VALID = 1
    BATCH_SIZE = 2
    NONE = 3


class NormRegion(IntEnum):
    ACROSS_CHANNELS = 0
    WITHIN_CHANNEL = 1


class BlobShape(Message):
    dim: Sequence[UInt] = repeated(1)


class FillerParameter(Message):
    type: str = optional(1, "constant")
    value: float = optional(2, 0.0)
    min: float = optional(3, 0.0)
    max: float = optional(4, 1.0)
    mean: float = optional(5, 0.0)
    std: float = optional(6, 1.0)
    variance_norm: VarianceNorm = optional(8, VarianceNorm.FAN_IN)


class NetState(Message):
    phase: Phase = optional(1, Phase.TEST)
    level: int = optional(2, 0)
    stage: Sequence[str] = repeated(3)


class NetStateRule(Message):
    phase: Phase = optional(1)
    min_level: int = optional(2)
    max_level: int = optional(3)
    stage: Sequence[str] = repeated(4)
    not_stage: Sequence[str] = repeated(5)


class ParamSpec(Message):
    lr_mult: float = optional(3, 1.0)
    decay_mult: float = optional(4, 1.0)


class LossParameter(Message):
    ignore_label: int = optional(1)
    normalization: NormalizationMode = optional(3, NormalizationMode.VALID)


class AccuracyParameter(Message):
    top_k: UInt = optional(1, 1)
    axis: int = optional(2, 1)
    ignore_label: int = optional(3)


class BatchNormParameter(Message):
    use_global_stats: bool = optional(1)
    moving_average_fraction: float = optional(2, 0.999)
    eps: float = optional(3, 1e-5)


class ConcatParameter(Message):
    axis: int = optional(2, 1)


class ConvolutionParameter(Message):
    num_output: UInt = optional(1)
    bias_term: bool = optional(2, True)
    pad: Sequence[UInt] = repeated(3)
    kernel_size: Sequence[UInt] = repeated(4)
    group: UInt = optional(5, 1)
    stride: Sequence[UInt] = repeated(6)
    weight_filler: FillerParameter = optional(7)
    bias_filler: FillerParameter = optional(8)
    pad_h: UInt = optional(9, 0)
    pad_w: UInt = optional(10, 0)
    kernel_h: UInt = optional(11)
    kernel_w: UInt = optional(12)
    stride_h: UInt = optional(13)
    stride_w: UInt = optional(14)
    dilation: Sequence[UInt] = repeated(18)


class DropoutParameter(Message):
    dropout_ratio: float = optional(1, 0.5)


class EltwiseParameter(Message):
    operation: EltwiseOp = optional(1, EltwiseOp.SUM)
    coeff: Sequence[float] = repeated(2)


class FlattenParameter(Message):
    axis: int = optional(1, 1)
    end_axis: int = optional(2, -1)


class InnerProductParameter(Message):
    num_output: UInt = optional(1)
    bias_term: bool = optional(2, True)
    weight_filler: FillerParameter = optional(3)
    bias_filler: FillerParameter = optional(4)
    axis: int = optional(5, 1)


class InputParameter(Message):
    shape: Sequence[BlobShape] = repeated(1)


class LRNParameter(Message):
    local_size: UInt = optional(1, 5)
    alpha: float = optional(2, 1.0)
    beta: float = optional(3, 0.75)
    norm_region: NormRegion = optional(4, NormRegion.ACROSS_CHANNELS)
    k: float = optional(5, 1.0)


class PoolingParameter(Message):
    pool: PoolMethod = optional(1, PoolMethod.MAX)
    kernel_size: UInt = optional(2)
    stride: UInt = optional(3, 1)
    pad: UInt = optional(4, 0)
    kernel_h: UInt = optional(5)
    kernel_w: UInt = optional(6)
    stride_h: UInt = optional(7)
    stride_w: UInt = optional(8)
    pad_h: UInt = optional(9, 0)
    pad_w: UInt = optional(10, 0)
    global_pooling: bool = optional(12, False)


class PythonParameter(Message):
    module: str = optional(1)
    layer: str = optional(2)
    param_str: str = optional(3, "")


class ReLUParameter(Message):
    negative_slope: float = optional(1, 0.0)


class ScaleParameter(Message):
    axis: int = optional(1, 1)
    num_axes: int = optional(2, 1)
    filler: FillerParameter = optional(3)
    bias_term: bool = optional(4, False)
    bias_filler: FillerParameter = optional(5)


class SoftmaxParameter(Message):
    axis: int = optional(2, 1)


class LayerParameter(Message):
    name: str = optional(1)
    type: str = optional(2)
    bottom: Sequence[str] = repeated(3)
    top: Sequence[str] = repeated(4)
    loss_weight: Sequence[float] = repeated(5)
    param: Sequence[ParamSpec] = repeated(6)
    include: Sequence[NetStateRule] = repeated(8)
    exclude: Sequence[NetStateRule] = repeated(9)
    loss_param: LossParameter = optional(101)
    accuracy_param: AccuracyParameter = optional(102)
    concat_param: ConcatParameter = optional(104)
    convolution_param: ConvolutionParameter = optional(106)
    dropout_param: DropoutParameter = optional(108)
    eltwise_param: EltwiseParameter = optional(110)
    inner_product_param: InnerProductParameter = optional(117)
    lrn_param: LRNParameter = optional(118)
    pooling_param: PoolingParameter = optional(121)
    relu_param: ReLUParameter = optional(123)
    softmax_param: SoftmaxParameter = optional(125)
    python_param: PythonParameter = optional(130)
    flatten_param: FlattenParameter = optional(135)
    batch_norm_param: BatchNormParameter = optional(139)
    scale_param: ScaleParameter = optional(142)
    input_param: InputParameter = optional(143)


class NetParameter(Message):
    name: str = optional(1)
    state: NetState = optional(6)
    layer: Sequence[LayerParameter] = repeated(100)


class SolverParameter(Message):
    train_net: str = optional(1)
    test_net: Sequence[str] = repeated(2)
    test_iter: Sequence[UInt] = repeated(3)
    test_interval: UInt = optional(4, 0)
    base_lr: float = optional(5)
    display: UInt = optional(6)
    max_iter: UInt = optional(7)
    lr_policy: str = optional(8)
    gamma: float = optional(9)
    power: float = optional(10)
    momentum: float = optional(11)
    weight_decay: float = optional(12)
    stepsize: UInt = optional(13)
    snapshot: UInt = optional(14, 0)
    snapshot_prefix: str = optional(15)
    solver_mode: SolverMode = optional(17, SolverMode.GPU)
    device_id: UInt = optional(18, 0)
    random_seed: int = optional(20, -1)
    net: str = optional(24)
    train_state: NetState = optional(26)
    test_state: Sequence[NetState] = repeated(27)
    snapshot_after_train: bool = optional(28, True)
    regularization_type: str = optional(29, "L2")
    test_initialization: bool = optional(32, True)
    average_loss: UInt = optional(33, 1)
    stepvalue: Sequence[UInt] = repeated(34)
    clip_gradients: float = optional(35, -1.0)
    iter_size: UInt = optional(36, 1)
    type: str = optional(40, "SGD")
