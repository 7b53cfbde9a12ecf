"""`hf.quantize`: models with weights, and products, in small integers, and the operations that they are made of."""

from hybridflow.compress.aware_training import FakeQuantized as FakeQuantized
from hybridflow.compress.aware_training import convert as convert
from hybridflow.compress.aware_training import prepare as prepare
from hybridflow.compress.batch_norm import fuse_batch_norm as fuse_batch_norm
from hybridflow.compress.layers import QuantizedConv as QuantizedConv
from hybridflow.compress.layers import QuantizedEmbedding as QuantizedEmbedding
from hybridflow.compress.layers import QuantizedLinear as QuantizedLinear
from hybridflow.compress.quantized_models import dynamic as dynamic
from hybridflow.compress.quantized_models import static as static
from hybridflow.compress.quantized_models import weights as weights
from hybridflow.compress.report import LayerReport as LayerReport
from hybridflow.compress.report import QuantizationReport as QuantizationReport
from hybridflow.compress.report import report as report
from hybridflow.ops.integer_products import integer_conv as integer_conv
from hybridflow.ops.integer_products import integer_linear as integer_linear
from hybridflow.ops.packing import pack_int4 as pack_int4
from hybridflow.ops.packing import unpack_int4 as unpack_int4
from hybridflow.ops.quantization import dequantize_linear as dequantize_linear
from hybridflow.ops.quantization import fake_quantize as fake_quantize
from hybridflow.ops.quantization import quantize_dynamic as quantize_dynamic
from hybridflow.ops.quantization import quantize_linear as quantize_linear
from hybridflow.ops.quantized_products import quantized_conv as quantized_conv
from hybridflow.ops.quantized_products import quantized_linear as quantized_linear
from hybridflow.ops.quantized_products import weight_only_linear as weight_only_linear
