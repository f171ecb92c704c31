"""Caffe's messages with their names, numbers and defaults, which are those of caffe.proto in BVLC Caffe 1.0.

A field that is not in the table is refused with its line.
"""

from __future__ import annotations

import functools
import re
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from ...workers.base import protobuf

Phase = IntEnum("Phase", "TRAIN TEST", start=0)
SolverMode = IntEnum("SolverMode", "CPU GPU", start=0)
SolverType = IntEnum("SolverType", "SGD NESTEROV ADAGRAD RMSPROP ADADELTA ADAM", start=0)
SnapshotFormat = IntEnum("SnapshotFormat", "HDF5 BINARYPROTO", start=0)
DB = IntEnum("DB", "LEVELDB LMDB", start=0)
Engine = IntEnum("Engine", "DEFAULT CAFFE CUDNN", start=0)
DimCheckMode = IntEnum("DimCheckMode", "STRICT PERMISSIVE", start=0)
VarianceNorm = IntEnum("VarianceNorm", "FAN_IN FAN_OUT AVERAGE", start=0)
PoolMethod = IntEnum("PoolMethod", "MAX AVE STOCHASTIC", start=0)
RoundMode = IntEnum("RoundMode", "CEIL FLOOR", start=0)
EltwiseOp = IntEnum("EltwiseOp", "PROD SUM MAX", start=0)
ReductionOp = IntEnum("ReductionOp", "SUM ASUM SUMSQ MEAN", start=1)
HingeNorm = IntEnum("HingeNorm", "L1 L2", start=1)
NormalizationMode = IntEnum("NormalizationMode", "FULL VALID BATCH_SIZE NONE", start=0)
NormRegion = IntEnum("NormRegion", "ACROSS_CHANNELS WITHIN_CHANNEL", start=0)
V1LayerType = IntEnum(
    "V1LayerType",
    "NONE ACCURACY BNLL CONCAT CONVOLUTION DATA DROPOUT EUCLIDEAN_LOSS FLATTEN HDF5_DATA HDF5_OUTPUT IM2COL IMAGE_DATA "
    "INFOGAIN_LOSS INNER_PRODUCT LRN MULTINOMIAL_LOGISTIC_LOSS POOLING RELU SIGMOID SOFTMAX SOFTMAX_LOSS SPLIT TANH "
    "WINDOW_DATA ELTWISE POWER SIGMOID_CROSS_ENTROPY_LOSS HINGE_LOSS MEMORY_DATA ARGMAX THRESHOLD DUMMY_DATA SLICE MVN "
    "ABSVAL SILENCE CONTRASTIVE_LOSS EXP DECONVOLUTION",
    start=0,
)


class Message:
    """A parsed message: `message_class` gives the class by which the protobuf library implements it."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...


# The messages that code names. `data` and `diff` of a BlobProto are bytes: to make a float of Python of each of its
# packed numbers would take minutes.
class BlobProto(Message): ...


class FillerParameter(Message): ...


class LayerParameter(Message): ...


class NetParameter(Message): ...


class SolverParameter(Message): ...


class SolverState(Message): ...


# Each message: number, name and type of its fields, a star if there may be several, the default if it is not zero.
# Without a type, `relu_param` is a ReLUParameter.
TABLE = """
BlobShape: 1 dim int64*
BlobProto: 1 num int, 2 channels int, 3 height int, 4 width int, 5 data bytes, 6 diff bytes, 7 shape BlobShape,
    8 double_data bytes
FillerParameter: 1 type string = constant, 2 value float, 3 min float, 4 max float = 1, 5 mean float, 6 std float = 1,
    7 sparse int = -1, 8 variance_norm VarianceNorm
NetState: 1 phase Phase = TEST, 2 level int, 3 stage string*
NetStateRule: 1 phase Phase, 2 min_level int, 3 max_level int, 4 stage string*, 5 not_stage string*
ParamSpec: 1 name string, 2 share_mode DimCheckMode, 3 lr_mult float = 1, 4 decay_mult float = 1
LossParameter: 1 ignore_label int, 2 normalize bool, 3 normalization NormalizationMode = VALID
AccuracyParameter: 1 top_k uint = 1, 2 axis int = 1, 3 ignore_label int
ArgMaxParameter: 1 out_max_val bool, 2 top_k uint = 1, 3 axis int
BatchNormParameter: 1 use_global_stats bool, 2 moving_average_fraction float = 0.999, 3 eps float = 1e-05
BiasParameter: 1 axis int = 1, 2 num_axes int = 1, 3 filler FillerParameter
ClipParameter: 1 min float, 2 max float
ConcatParameter: 1 concat_dim uint = 1, 2 axis int = 1
ContrastiveLossParameter: 1 margin float = 1, 2 legacy_version bool
ConvolutionParameter: 1 num_output uint, 2 bias_term bool = true, 3 pad uint*, 4 kernel_size uint*, 5 group uint = 1,
    6 stride uint*, 7 weight_filler FillerParameter, 8 bias_filler FillerParameter, 9 pad_h uint, 10 pad_w uint,
    11 kernel_h uint, 12 kernel_w uint, 13 stride_h uint, 14 stride_w uint, 15 engine Engine, 16 axis int = 1,
    17 force_nd_im2col bool, 18 dilation uint*
CropParameter: 1 axis int = 2, 2 offset uint*
TransformationParameter: 1 scale float = 1, 2 mirror bool, 3 crop_size uint, 4 mean_file string, 5 mean_value float*,
    6 force_color bool, 7 force_gray bool
DataParameter: 1 source string, 2 scale float = 1, 3 mean_file string, 4 batch_size uint, 5 crop_size uint,
    6 mirror bool, 7 rand_skip uint, 8 backend DB, 9 force_encoded_color bool, 10 prefetch uint = 4
HDF5DataParameter: 1 source string, 2 batch_size uint, 3 shuffle bool
HDF5OutputParameter: 1 file_name string
ImageDataParameter: 1 source string, 2 scale float = 1, 3 mean_file string, 4 batch_size uint = 1, 5 crop_size uint,
    6 mirror bool, 7 rand_skip uint, 8 shuffle bool, 9 new_height uint, 10 new_width uint, 11 is_color bool = true,
    12 root_folder string
DropoutParameter: 1 dropout_ratio float = 0.5
DummyDataParameter: 1 data_filler FillerParameter*, 2 num uint*, 3 channels uint*, 4 height uint*, 5 width uint*,
    6 shape BlobShape*
EltwiseParameter: 1 operation EltwiseOp = SUM, 2 coeff float*, 3 stable_prod_grad bool = true
ELUParameter: 1 alpha float = 1
EmbedParameter: 1 num_output uint, 2 input_dim uint, 3 bias_term bool = true, 4 weight_filler FillerParameter,
    5 bias_filler FillerParameter
ExpParameter: 1 base float = -1, 2 scale float = 1, 3 shift float
FlattenParameter: 1 axis int = 1, 2 end_axis int = -1
HingeLossParameter: 1 norm HingeNorm
InfogainLossParameter: 1 source string, 2 axis int = 1
InnerProductParameter: 1 num_output uint, 2 bias_term bool = true, 3 weight_filler FillerParameter,
    4 bias_filler FillerParameter, 5 axis int = 1, 6 transpose bool
InputParameter: 1 shape BlobShape*
LogParameter: 1 base float = -1, 2 scale float = 1, 3 shift float
LRNParameter: 1 local_size uint = 5, 2 alpha float = 1, 3 beta float = 0.75, 4 norm_region NormRegion, 5 k float = 1,
    6 engine Engine
MVNParameter: 1 normalize_variance bool = true, 2 across_channels bool, 3 eps float = 1e-09
ParameterParameter: 1 shape BlobShape
PoolingParameter: 1 pool PoolMethod, 2 kernel_size uint, 3 stride uint = 1, 4 pad uint, 5 kernel_h uint,
    6 kernel_w uint, 7 stride_h uint, 8 stride_w uint, 9 pad_h uint, 10 pad_w uint, 11 engine Engine,
    12 global_pooling bool, 13 round_mode RoundMode
PowerParameter: 1 power float = 1, 2 scale float = 1, 3 shift float
PReLUParameter: 1 filler FillerParameter, 2 channel_shared bool
PythonParameter: 1 module string, 2 layer string, 3 param_str string, 4 share_in_parallel bool
RecurrentParameter: 1 num_output uint, 2 weight_filler FillerParameter, 3 bias_filler FillerParameter,
    4 debug_info bool, 5 expose_hidden bool
ReductionParameter: 1 operation ReductionOp, 2 axis int, 3 coeff float = 1
ReLUParameter: 1 negative_slope float, 2 engine Engine
ReshapeParameter: 1 shape BlobShape, 2 axis int, 3 num_axes int = -1
ScaleParameter: 1 axis int = 1, 2 num_axes int = 1, 3 filler FillerParameter, 4 bias_term bool,
    5 bias_filler FillerParameter
SigmoidParameter: 1 engine Engine
SliceParameter: 1 slice_dim uint = 1, 2 slice_point uint*, 3 axis int = 1
SoftmaxParameter: 1 engine Engine, 2 axis int = 1
SPPParameter: 1 pyramid_height uint, 2 pool PoolMethod, 6 engine Engine
SwishParameter: 1 beta float = 1
TanHParameter: 1 engine Engine
ThresholdParameter: 1 threshold float
TileParameter: 1 axis int = 1, 2 tiles int
WindowDataParameter: 1 source string, 2 scale float = 1, 3 mean_file string, 4 batch_size uint, 5 crop_size uint,
    6 mirror bool, 7 fg_threshold float = 0.5, 8 bg_threshold float = 0.5, 9 fg_fraction float = 0.25,
    10 context_pad uint, 11 crop_mode string = warp, 12 cache_images bool, 13 root_folder string
MemoryDataParameter: 1 batch_size uint, 2 channels uint, 3 height uint, 4 width uint
LayerParameter: 1 name string, 2 type string, 3 bottom string*, 4 top string*, 5 loss_weight float*, 6 param ParamSpec*,
    7 blobs BlobProto*, 8 include NetStateRule*, 9 exclude NetStateRule*, 10 phase Phase, 11 propagate_down bool*,
    100 transform_param TransformationParameter, 101 loss_param, 102 accuracy_param, 103 argmax_param, 104 concat_param,
    105 contrastive_loss_param, 106 convolution_param, 107 data_param, 108 dropout_param, 109 dummy_data_param,
    110 eltwise_param, 111 exp_param, 112 hdf5_data_param, 113 hdf5_output_param, 114 hinge_loss_param,
    115 image_data_param, 116 infogain_loss_param, 117 inner_product_param, 118 lrn_param, 119 memory_data_param,
    120 mvn_param, 121 pooling_param, 122 power_param, 123 relu_param, 124 sigmoid_param, 125 softmax_param,
    126 slice_param, 127 tanh_param, 128 threshold_param, 129 window_data_param, 130 python_param, 131 prelu_param,
    132 spp_param, 133 reshape_param, 134 log_param, 135 flatten_param, 136 reduction_param, 137 embed_param,
    138 tile_param, 139 batch_norm_param, 140 elu_param, 141 bias_param, 142 scale_param, 143 input_param,
    144 crop_param, 145 parameter_param, 146 recurrent_param, 147 swish_param, 148 clip_param
V0LayerParameter: 1 name string, 2 type string, 3 num_output uint, 4 biasterm bool = true,
    5 weight_filler FillerParameter, 6 bias_filler FillerParameter, 7 pad uint, 8 kernelsize uint, 9 group uint = 1,
    10 stride uint = 1, 11 pool PoolMethod, 12 dropout_ratio float = 0.5, 13 local_size uint = 5, 14 alpha float = 1,
    15 beta float = 0.75, 16 source string, 17 scale float = 1, 18 meanfile string, 19 batchsize uint,
    20 cropsize uint, 21 mirror bool, 22 k float = 1, 50 blobs BlobProto*, 51 blobs_lr float*, 52 weight_decay float*,
    53 rand_skip uint, 54 det_fg_threshold float = 0.5, 55 det_bg_threshold float = 0.5,
    56 det_fg_fraction float = 0.25, 58 det_context_pad uint, 59 det_crop_mode string = warp, 60 new_num int,
    61 new_channels int, 62 new_height uint, 63 new_width uint, 64 shuffle_images bool, 65 concat_dim uint = 1,
    66 hdf5_output_param HDF5OutputParameter
V1LayerParameter: 1 layer V0LayerParameter, 2 bottom string*, 3 top string*, 4 name string, 5 type V1LayerType,
    6 blobs BlobProto*, 7 blobs_lr float*, 8 weight_decay float*, 9 concat_param, 10 convolution_param, 11 data_param,
    12 dropout_param, 13 hdf5_data_param, 14 hdf5_output_param, 15 image_data_param, 16 infogain_loss_param,
    17 inner_product_param, 18 lrn_param, 19 pooling_param, 20 window_data_param, 21 power_param, 22 memory_data_param,
    23 argmax_param, 24 eltwise_param, 25 threshold_param, 26 dummy_data_param, 27 accuracy_param, 29 hinge_loss_param,
    30 relu_param, 31 slice_param, 32 include NetStateRule*, 33 exclude NetStateRule*, 34 mvn_param,
    35 loss_weight float*, 36 transform_param TransformationParameter, 37 tanh_param, 38 sigmoid_param,
    39 softmax_param, 40 contrastive_loss_param, 41 exp_param, 42 loss_param, 1001 param string*,
    1002 blob_share_mode DimCheckMode*
NetParameter: 1 name string, 2 layers V1LayerParameter*, 3 input string*, 4 input_dim uint*, 5 force_backward bool,
    6 state NetState, 7 debug_info bool, 8 input_shape BlobShape*, 100 layer LayerParameter*
SolverParameter: 1 train_net string, 2 test_net string*, 3 test_iter uint*, 4 test_interval uint, 5 base_lr float,
    6 display uint, 7 max_iter uint, 8 lr_policy string, 9 gamma float, 10 power float, 11 momentum float,
    12 weight_decay float, 13 stepsize uint, 14 snapshot uint, 15 snapshot_prefix string, 16 snapshot_diff bool,
    17 solver_mode SolverMode = GPU, 18 device_id uint, 19 test_compute_loss bool, 20 random_seed int64 = -1,
    21 train_net_param NetParameter, 22 test_net_param NetParameter*, 23 debug_info bool, 24 net string,
    25 net_param NetParameter, 26 train_state NetState, 27 test_state NetState*, 28 snapshot_after_train bool = true,
    29 regularization_type string = L2, 30 solver_type SolverType, 31 delta float = 1e-08,
    32 test_initialization bool = true, 33 average_loss uint = 1, 34 stepvalue uint*, 35 clip_gradients float = -1,
    36 iter_size uint = 1, 37 snapshot_format SnapshotFormat = BINARYPROTO, 38 rms_decay float = 0.99,
    39 momentum2 float = 0.999, 40 type string = SGD, 41 layer_wise_reduce bool = true, 42 weights string*
SolverState: 1 iter int, 2 learned_net string, 3 history BlobProto*, 4 current_step int
"""


def message_class(declared: type[Message]) -> type[Any]:
    """The protobuf class of the message that `declared` is named after."""
    return message_classes()[declared.__name__]


@functools.cache
def own_fields() -> dict[str, str]:
    """By type of layer: the field of LayerParameter that belongs to it, such as relu_param for ReLU."""
    fields = message_class(LayerParameter).DESCRIPTOR.fields
    return {f.message_type.name.removesuffix("Parameter"): f.name for f in fields if f.name.endswith("_param")}


@functools.cache
def message_classes() -> dict[str, type[Any]]:
    """All messages of the table by name, such that each can be put into the others."""
    enums = {name: each for name, each in globals().items() if isinstance(each, type) and issubclass(each, IntEnum)}
    names = {name.lower(): name for name in re.findall(r"^\w+", TABLE, re.MULTILINE)}
    typed = re.sub(
        r"(\w+)_param(?=[,\n])", lambda own: f"{own[0]} {names[own[1].replace('_', '') + 'parameter']}", TABLE
    )
    return protobuf.message_classes(typed, enums)
