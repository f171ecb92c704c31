"""Caffe's messages, as far as they are supported, with Caffe's names, numbers and defaults.

A field that is not here is refused with its line. Numbers and defaults are those of caffe.proto in BVLC Caffe 1.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from .descriptors import Int64, Message, UInt, optional, repeated


class Phase(IntEnum):
    TRAIN = 0
    TEST = 1


class SolverMode(IntEnum):
    CPU = 0
    GPU = 1


class SolverType(IntEnum):
    SGD = 0
    NESTEROV = 1
    ADAGRAD = 2
    RMSPROP = 3
    ADADELTA = 4
    ADAM = 5


class SnapshotFormat(IntEnum):
    HDF5 = 0
    BINARYPROTO = 1


class DB(IntEnum):
    LEVELDB = 0
    LMDB = 1


class Engine(IntEnum):
    DEFAULT = 0
    CAFFE = 1
    CUDNN = 2


class DimCheckMode(IntEnum):
    STRICT = 0
    PERMISSIVE = 1


class VarianceNorm(IntEnum):
    FAN_IN = 0
    FAN_OUT = 1
    AVERAGE = 2


class PoolMethod(IntEnum):
    MAX = 0
    AVE = 1
    STOCHASTIC = 2


class RoundMode(IntEnum):
    CEIL = 0
    FLOOR = 1


class EltwiseOp(IntEnum):
    PROD = 0
    SUM = 1
    MAX = 2


class ReductionOp(IntEnum):
    SUM = 1
    ASUM = 2
    SUMSQ = 3
    MEAN = 4


class HingeNorm(IntEnum):
    L1 = 1
    L2 = 2


class NormalizationMode(IntEnum):
    FULL = 0
    VALID = 1
    BATCH_SIZE = 2
    NONE = 3


class NormRegion(IntEnum):
    ACROSS_CHANNELS = 0
    WITHIN_CHANNEL = 1


class BlobShape(Message):
    dim: Sequence[Int64] = repeated(1)


class BlobProto(Message):
    """An array. Its packed numbers are declared as bytes: making a float of Python of each would take minutes."""

    num: int = optional(1, 0)
    channels: int = optional(2, 0)
    height: int = optional(3, 0)
    width: int = optional(4, 0)
    data: bytes = optional(5)
    diff: bytes = optional(6)
    shape: BlobShape = optional(7)
    double_data: bytes = optional(8)


class FillerParameter(Message):
    type: str = optional(1, "constant")
    value: float = optional(2, 0.0)
    min: float = optional(3, 0.0)
    max: float = optional(4, 1.0)
    mean: float = optional(5, 0.0)
    std: float = optional(6, 1.0)
    sparse: int = optional(7, -1)
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
    name: str = optional(1)
    share_mode: DimCheckMode = optional(2, DimCheckMode.STRICT)
    lr_mult: float = optional(3, 1.0)
    decay_mult: float = optional(4, 1.0)


class LossParameter(Message):
    ignore_label: int = optional(1)
    normalize: bool = optional(2)
    normalization: NormalizationMode = optional(3, NormalizationMode.VALID)


class AccuracyParameter(Message):
    top_k: UInt = optional(1, 1)
    axis: int = optional(2, 1)
    ignore_label: int = optional(3)


class ArgMaxParameter(Message):
    out_max_val: bool = optional(1, False)
    top_k: UInt = optional(2, 1)
    axis: int = optional(3)


class BatchNormParameter(Message):
    use_global_stats: bool = optional(1)
    moving_average_fraction: float = optional(2, 0.999)
    eps: float = optional(3, 1e-5)


class BiasParameter(Message):
    axis: int = optional(1, 1)
    num_axes: int = optional(2, 1)
    filler: FillerParameter = optional(3)


class ClipParameter(Message):
    min: float = optional(1)
    max: float = optional(2)


class ConcatParameter(Message):
    concat_dim: UInt = optional(1, 1)
    axis: int = optional(2, 1)


class ContrastiveLossParameter(Message):
    margin: float = optional(1, 1.0)
    legacy_version: bool = optional(2, False)


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
    engine: Engine = optional(15, Engine.DEFAULT)
    axis: int = optional(16, 1)
    force_nd_im2col: bool = optional(17, False)
    dilation: Sequence[UInt] = repeated(18)


class CropParameter(Message):
    axis: int = optional(1, 2)
    offset: Sequence[UInt] = repeated(2)


class TransformationParameter(Message):
    scale: float = optional(1, 1.0)
    mirror: bool = optional(2, False)
    crop_size: UInt = optional(3, 0)
    mean_file: str = optional(4)
    mean_value: Sequence[float] = repeated(5)
    force_color: bool = optional(6, False)
    force_gray: bool = optional(7, False)


class DataParameter(Message):
    source: str = optional(1)
    scale: float = optional(2, 1.0)
    mean_file: str = optional(3)
    batch_size: UInt = optional(4)
    crop_size: UInt = optional(5, 0)
    mirror: bool = optional(6, False)
    rand_skip: UInt = optional(7, 0)
    backend: DB = optional(8, DB.LEVELDB)
    force_encoded_color: bool = optional(9, False)
    prefetch: UInt = optional(10, 4)


class HDF5DataParameter(Message):
    source: str = optional(1)
    batch_size: UInt = optional(2)
    shuffle: bool = optional(3, False)


class HDF5OutputParameter(Message):
    file_name: str = optional(1)


class ImageDataParameter(Message):
    source: str = optional(1)
    scale: float = optional(2, 1.0)
    mean_file: str = optional(3)
    batch_size: UInt = optional(4, 1)
    crop_size: UInt = optional(5, 0)
    mirror: bool = optional(6, False)
    rand_skip: UInt = optional(7, 0)
    shuffle: bool = optional(8, False)
    new_height: UInt = optional(9, 0)
    new_width: UInt = optional(10, 0)
    is_color: bool = optional(11, True)
    root_folder: str = optional(12)


class DropoutParameter(Message):
    dropout_ratio: float = optional(1, 0.5)


class DummyDataParameter(Message):
    data_filler: Sequence[FillerParameter] = repeated(1)
    num: Sequence[UInt] = repeated(2)
    channels: Sequence[UInt] = repeated(3)
    height: Sequence[UInt] = repeated(4)
    width: Sequence[UInt] = repeated(5)
    shape: Sequence[BlobShape] = repeated(6)


class EltwiseParameter(Message):
    operation: EltwiseOp = optional(1, EltwiseOp.SUM)
    coeff: Sequence[float] = repeated(2)
    stable_prod_grad: bool = optional(3, True)


class ELUParameter(Message):
    alpha: float = optional(1, 1.0)


class EmbedParameter(Message):
    num_output: UInt = optional(1)
    input_dim: UInt = optional(2)
    bias_term: bool = optional(3, True)
    weight_filler: FillerParameter = optional(4)
    bias_filler: FillerParameter = optional(5)


class ExpParameter(Message):
    base: float = optional(1, -1.0)
    scale: float = optional(2, 1.0)
    shift: float = optional(3, 0.0)


class FlattenParameter(Message):
    axis: int = optional(1, 1)
    end_axis: int = optional(2, -1)


class HingeLossParameter(Message):
    norm: HingeNorm = optional(1, HingeNorm.L1)


class InfogainLossParameter(Message):
    source: str = optional(1)
    axis: int = optional(2, 1)


class InnerProductParameter(Message):
    num_output: UInt = optional(1)
    bias_term: bool = optional(2, True)
    weight_filler: FillerParameter = optional(3)
    bias_filler: FillerParameter = optional(4)
    axis: int = optional(5, 1)
    transpose: bool = optional(6, False)


class InputParameter(Message):
    shape: Sequence[BlobShape] = repeated(1)


class LogParameter(Message):
    base: float = optional(1, -1.0)
    scale: float = optional(2, 1.0)
    shift: float = optional(3, 0.0)


class LRNParameter(Message):
    local_size: UInt = optional(1, 5)
    alpha: float = optional(2, 1.0)
    beta: float = optional(3, 0.75)
    norm_region: NormRegion = optional(4, NormRegion.ACROSS_CHANNELS)
    k: float = optional(5, 1.0)
    engine: Engine = optional(6, Engine.DEFAULT)


class MVNParameter(Message):
    normalize_variance: bool = optional(1, True)
    across_channels: bool = optional(2, False)
    eps: float = optional(3, 1e-9)


class ParameterParameter(Message):
    shape: BlobShape = optional(1)


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
    engine: Engine = optional(11, Engine.DEFAULT)
    global_pooling: bool = optional(12, False)
    round_mode: RoundMode = optional(13, RoundMode.CEIL)


class PowerParameter(Message):
    power: float = optional(1, 1.0)
    scale: float = optional(2, 1.0)
    shift: float = optional(3, 0.0)


class PReLUParameter(Message):
    filler: FillerParameter = optional(1)
    channel_shared: bool = optional(2, False)


class PythonParameter(Message):
    module: str = optional(1)
    layer: str = optional(2)
    param_str: str = optional(3, "")
    share_in_parallel: bool = optional(4, False)


class RecurrentParameter(Message):
    num_output: UInt = optional(1, 0)
    weight_filler: FillerParameter = optional(2)
    bias_filler: FillerParameter = optional(3)
    debug_info: bool = optional(4, False)
    expose_hidden: bool = optional(5, False)


class ReductionParameter(Message):
    operation: ReductionOp = optional(1, ReductionOp.SUM)
    axis: int = optional(2, 0)
    coeff: float = optional(3, 1.0)


class ReLUParameter(Message):
    negative_slope: float = optional(1, 0.0)
    engine: Engine = optional(2, Engine.DEFAULT)


class ReshapeParameter(Message):
    shape: BlobShape = optional(1)
    axis: int = optional(2, 0)
    num_axes: int = optional(3, -1)


class ScaleParameter(Message):
    axis: int = optional(1, 1)
    num_axes: int = optional(2, 1)
    filler: FillerParameter = optional(3)
    bias_term: bool = optional(4, False)
    bias_filler: FillerParameter = optional(5)


class SigmoidParameter(Message):
    engine: Engine = optional(1, Engine.DEFAULT)


class SliceParameter(Message):
    slice_dim: UInt = optional(1, 1)
    slice_point: Sequence[UInt] = repeated(2)
    axis: int = optional(3, 1)


class SoftmaxParameter(Message):
    engine: Engine = optional(1, Engine.DEFAULT)
    axis: int = optional(2, 1)


class SPPParameter(Message):
    pyramid_height: UInt = optional(1)
    pool: PoolMethod = optional(2, PoolMethod.MAX)
    engine: Engine = optional(6, Engine.DEFAULT)


class SwishParameter(Message):
    beta: float = optional(1, 1.0)


class TanHParameter(Message):
    engine: Engine = optional(1, Engine.DEFAULT)


class ThresholdParameter(Message):
    threshold: float = optional(1, 0.0)


class TileParameter(Message):
    axis: int = optional(1, 1)
    tiles: int = optional(2)


class LayerParameter(Message):
    name: str = optional(1)
    type: str = optional(2)
    bottom: Sequence[str] = repeated(3)
    top: Sequence[str] = repeated(4)
    loss_weight: Sequence[float] = repeated(5)
    param: Sequence[ParamSpec] = repeated(6)
    blobs: Sequence[BlobProto] = repeated(7)
    include: Sequence[NetStateRule] = repeated(8)
    exclude: Sequence[NetStateRule] = repeated(9)
    phase: Phase = optional(10)
    propagate_down: Sequence[bool] = repeated(11)
    transform_param: TransformationParameter = optional(100)
    loss_param: LossParameter = optional(101)
    accuracy_param: AccuracyParameter = optional(102)
    argmax_param: ArgMaxParameter = optional(103)
    concat_param: ConcatParameter = optional(104)
    contrastive_loss_param: ContrastiveLossParameter = optional(105)
    convolution_param: ConvolutionParameter = optional(106)
    data_param: DataParameter = optional(107)
    dropout_param: DropoutParameter = optional(108)
    dummy_data_param: DummyDataParameter = optional(109)
    eltwise_param: EltwiseParameter = optional(110)
    exp_param: ExpParameter = optional(111)
    hdf5_data_param: HDF5DataParameter = optional(112)
    hdf5_output_param: HDF5OutputParameter = optional(113)
    hinge_loss_param: HingeLossParameter = optional(114)
    image_data_param: ImageDataParameter = optional(115)
    infogain_loss_param: InfogainLossParameter = optional(116)
    inner_product_param: InnerProductParameter = optional(117)
    lrn_param: LRNParameter = optional(118)
    mvn_param: MVNParameter = optional(120)
    pooling_param: PoolingParameter = optional(121)
    power_param: PowerParameter = optional(122)
    relu_param: ReLUParameter = optional(123)
    sigmoid_param: SigmoidParameter = optional(124)
    softmax_param: SoftmaxParameter = optional(125)
    slice_param: SliceParameter = optional(126)
    tanh_param: TanHParameter = optional(127)
    threshold_param: ThresholdParameter = optional(128)
    python_param: PythonParameter = optional(130)
    prelu_param: PReLUParameter = optional(131)
    spp_param: SPPParameter = optional(132)
    reshape_param: ReshapeParameter = optional(133)
    log_param: LogParameter = optional(134)
    flatten_param: FlattenParameter = optional(135)
    reduction_param: ReductionParameter = optional(136)
    embed_param: EmbedParameter = optional(137)
    tile_param: TileParameter = optional(138)
    batch_norm_param: BatchNormParameter = optional(139)
    elu_param: ELUParameter = optional(140)
    bias_param: BiasParameter = optional(141)
    scale_param: ScaleParameter = optional(142)
    input_param: InputParameter = optional(143)
    crop_param: CropParameter = optional(144)
    parameter_param: ParameterParameter = optional(145)
    recurrent_param: RecurrentParameter = optional(146)
    swish_param: SwishParameter = optional(147)
    clip_param: ClipParameter = optional(148)


class V0LayerParameter(Message):
    """A layer as Caffe wrote it in 2013: `layers { layer { type: "conv" ... } bottom: ... }`."""

    name: str = optional(1)
    type: str = optional(2)
    num_output: UInt = optional(3)
    biasterm: bool = optional(4, True)
    weight_filler: FillerParameter = optional(5)
    bias_filler: FillerParameter = optional(6)
    pad: UInt = optional(7, 0)
    kernelsize: UInt = optional(8)
    group: UInt = optional(9, 1)
    stride: UInt = optional(10, 1)
    pool: PoolMethod = optional(11, PoolMethod.MAX)
    dropout_ratio: float = optional(12, 0.5)
    local_size: UInt = optional(13, 5)
    alpha: float = optional(14, 1.0)
    beta: float = optional(15, 0.75)
    source: str = optional(16)
    scale: float = optional(17, 1.0)
    meanfile: str = optional(18)
    batchsize: UInt = optional(19)
    cropsize: UInt = optional(20, 0)
    mirror: bool = optional(21, False)
    k: float = optional(22, 1.0)
    blobs: Sequence[BlobProto] = repeated(50)
    blobs_lr: Sequence[float] = repeated(51)
    weight_decay: Sequence[float] = repeated(52)
    rand_skip: UInt = optional(53, 0)
    new_height: UInt = optional(62, 0)
    new_width: UInt = optional(63, 0)
    shuffle_images: bool = optional(64, False)
    concat_dim: UInt = optional(65, 1)


class V1LayerType(IntEnum):
    NONE = 0
    ACCURACY = 1
    BNLL = 2
    CONCAT = 3
    CONVOLUTION = 4
    DATA = 5
    DROPOUT = 6
    EUCLIDEAN_LOSS = 7
    FLATTEN = 8
    HDF5_DATA = 9
    HDF5_OUTPUT = 10
    IM2COL = 11
    IMAGE_DATA = 12
    INFOGAIN_LOSS = 13
    INNER_PRODUCT = 14
    LRN = 15
    MULTINOMIAL_LOGISTIC_LOSS = 16
    POOLING = 17
    RELU = 18
    SIGMOID = 19
    SOFTMAX = 20
    SOFTMAX_LOSS = 21
    SPLIT = 22
    TANH = 23
    WINDOW_DATA = 24
    ELTWISE = 25
    POWER = 26
    SIGMOID_CROSS_ENTROPY_LOSS = 27
    HINGE_LOSS = 28
    MEMORY_DATA = 29
    ARGMAX = 30
    THRESHOLD = 31
    DUMMY_DATA = 32
    SLICE = 33
    MVN = 34
    ABSVAL = 35
    SILENCE = 36
    CONTRASTIVE_LOSS = 37
    EXP = 38
    DECONVOLUTION = 39


class V1LayerParameter(Message):
    """A layer as Caffe wrote it in 2014: `layers { type: CONVOLUTION blobs_lr: 1 ... }`."""

    layer: V0LayerParameter = optional(1)
    bottom: Sequence[str] = repeated(2)
    top: Sequence[str] = repeated(3)
    name: str = optional(4)
    type: V1LayerType = optional(5, V1LayerType.NONE)
    blobs: Sequence[BlobProto] = repeated(6)
    blobs_lr: Sequence[float] = repeated(7)
    weight_decay: Sequence[float] = repeated(8)
    concat_param: ConcatParameter = optional(9)
    convolution_param: ConvolutionParameter = optional(10)
    data_param: DataParameter = optional(11)
    dropout_param: DropoutParameter = optional(12)
    hdf5_data_param: HDF5DataParameter = optional(13)
    hdf5_output_param: HDF5OutputParameter = optional(14)
    image_data_param: ImageDataParameter = optional(15)
    infogain_loss_param: InfogainLossParameter = optional(16)
    inner_product_param: InnerProductParameter = optional(17)
    lrn_param: LRNParameter = optional(18)
    pooling_param: PoolingParameter = optional(19)
    power_param: PowerParameter = optional(21)
    argmax_param: ArgMaxParameter = optional(23)
    eltwise_param: EltwiseParameter = optional(24)
    threshold_param: ThresholdParameter = optional(25)
    dummy_data_param: DummyDataParameter = optional(26)
    accuracy_param: AccuracyParameter = optional(27)
    hinge_loss_param: HingeLossParameter = optional(29)
    relu_param: ReLUParameter = optional(30)
    slice_param: SliceParameter = optional(31)
    include: Sequence[NetStateRule] = repeated(32)
    exclude: Sequence[NetStateRule] = repeated(33)
    mvn_param: MVNParameter = optional(34)
    loss_weight: Sequence[float] = repeated(35)
    transform_param: TransformationParameter = optional(36)
    tanh_param: TanHParameter = optional(37)
    sigmoid_param: SigmoidParameter = optional(38)
    softmax_param: SoftmaxParameter = optional(39)
    contrastive_loss_param: ContrastiveLossParameter = optional(40)
    exp_param: ExpParameter = optional(41)
    loss_param: LossParameter = optional(42)
    param: Sequence[str] = repeated(1001)
    blob_share_mode: Sequence[DimCheckMode] = repeated(1002)


class NetParameter(Message):
    name: str = optional(1)
    layers: Sequence[V1LayerParameter] = repeated(2)
    input: Sequence[str] = repeated(3)
    input_dim: Sequence[UInt] = repeated(4)
    force_backward: bool = optional(5, False)
    state: NetState = optional(6)
    debug_info: bool = optional(7, False)
    input_shape: Sequence[BlobShape] = repeated(8)
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
    snapshot_diff: bool = optional(16, False)
    solver_mode: SolverMode = optional(17, SolverMode.GPU)
    device_id: UInt = optional(18, 0)
    test_compute_loss: bool = optional(19, False)
    random_seed: Int64 = optional(20, -1)
    train_net_param: NetParameter = optional(21)
    test_net_param: Sequence[NetParameter] = repeated(22)
    debug_info: bool = optional(23, False)
    net: str = optional(24)
    net_param: NetParameter = optional(25)
    train_state: NetState = optional(26)
    test_state: Sequence[NetState] = repeated(27)
    snapshot_after_train: bool = optional(28, True)
    regularization_type: str = optional(29, "L2")
    solver_type: SolverType = optional(30, SolverType.SGD)
    delta: float = optional(31, 1e-8)
    test_initialization: bool = optional(32, True)
    average_loss: UInt = optional(33, 1)
    stepvalue: Sequence[UInt] = repeated(34)
    clip_gradients: float = optional(35, -1.0)
    iter_size: UInt = optional(36, 1)
    snapshot_format: SnapshotFormat = optional(37, SnapshotFormat.BINARYPROTO)
    rms_decay: float = optional(38, 0.99)
    momentum2: float = optional(39, 0.999)
    type: str = optional(40, "SGD")
    layer_wise_reduce: bool = optional(41, True)
    weights: Sequence[str] = repeated(42)


class SolverState(Message):
    """What a .solverstate file holds."""

    iter: int = optional(1)
    learned_net: str = optional(2)
    history: Sequence[BlobProto] = repeated(3)
    current_step: int = optional(4, 0)
