// RUN: %gristmill compile %s --emit=kernels | filecheck %s
// RUN: %gristmill compile %s --emit=kernels | filecheck %s --check-prefix=POOL

// A padded copy of the input, then tiles of pixels by vectors of features carried through window and channels.
// CHECK-DAG: func.func @kernel_0_convolution(
// CHECK-DAG: func.func @kernel_0_convolution_1(
// CHECK-DAG: scf.for {{.*}} -> (vector<[[L:[0-9]+]]xf32>, vector<[[L]]xf32>
// CHECK-DAG: vector.broadcast %{{.*}} : f32 to vector<[[L]]xf32>

// Depthwise, borders clipped: one phase, vectors of channels.
// CHECK-DAG: func.func @kernel_1_convolution(
// CHECK-NOT: func.func @kernel_1_convolution_1(

// Windows of a maximum, as vectors of channels: bare comparisons along rows that lie inside, NaN looked for beside them.
// POOL: func.func @kernel_2_pooling(
// POOL: arith.cmpf ord, {{.*}} : vector<[[L:[0-9]+]]xf32>
// POOL: arith.cmpf ogt, {{.*}} : vector<[[L]]xf32>
// POOL: arith.maximumf {{.*}} : vector<[[L]]xf32>
func.func public @main(%x: tensor<1x12x12x16xf32>, %w: tensor<3x3x16x32xf32>, %d: tensor<3x3x1x32xf32>)
    -> tensor<1x6x6x32xf32> {
  %z = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {pad = [[1, 1], [1, 1]]}
    {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x12x12x16xf32>, tensor<3x3x16x32xf32>) -> tensor<1x12x12x32xf32>
  %1 = stablehlo.convolution(%0, %d) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {pad = [[1, 1], [1, 1]]}
    {batch_group_count = 1 : i64, feature_group_count = 32 : i64} : (tensor<1x12x12x32xf32>, tensor<3x3x1x32xf32>) -> tensor<1x12x12x32xf32>
  %2 = "stablehlo.reduce_window"(%1, %z) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.maximum %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) {window_dimensions = array<i64: 1, 3, 3, 1>, window_strides = array<i64: 1, 2, 2, 1>, padding = dense<[[0, 0], [0, 1], [0, 1], [0, 0]]> : tensor<4x2xi64>} : (tensor<1x12x12x32xf32>, tensor<f32>) -> tensor<1x6x6x32xf32>
  return %2 : tensor<1x6x6x32xf32>
}
