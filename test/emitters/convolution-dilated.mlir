// RUN: %gristmill compile %s --emit=kernels | filecheck %s --check-prefix=PART
// RUN: %gristmill compile %s --emit=kernels | filecheck %s --check-prefix=WHOLE

// The copy has the input's elements and the padding that windows reach, but not the zeros between elements. The
// window's loops run over the taps that read: two or one of three.
// PART-LABEL: func.func @kernel_0_convolution(
// PART: memref.view {{.*}} to memref<1x9x9x16xf32>
// PART-LABEL: func.func @kernel_0_convolution_1(
// PART: memref.view {{.*}} to memref<1x9x9x16xf32>
// PART: scf.for %{{.*}} = %c0{{.*}} to %{{[0-9]+}} step {{.*}} -> (vector<[[L:[0-9]+]]xf32>, vector<[[L]]xf32>
// PART: scf.for %{{.*}} = %c0{{.*}} to %{{[0-9]+}} step {{.*}} -> (vector<[[L]]xf32>, vector<[[L]]xf32>
// PART: scf.for %{{.*}} = %c0{{.*}} to %c16{{.*}} step {{.*}} -> (vector<[[L]]xf32>, vector<[[L]]xf32>

// As large a kernel as the dilation: every window reads at one tap, of the operand as it is; only the weights are
// copied. No loop runs over the window.
// WHOLE-LABEL: func.func @kernel_1_convolution(
// WHOLE: memref.view {{.*}} to memref<1x1x4x8x8xf32>
// WHOLE-LABEL: func.func @kernel_1_convolution_1(
// WHOLE-NOT: to memref<1x16x16x8xf32>
// WHOLE-NOT: to %{{[0-9]+}} step {{.*}} -> (vector
// WHOLE: vector.store
func.func public @main(%x: tensor<1x8x8x16xf32>, %v: tensor<3x3x16x8xf32>, %w: tensor<2x2x8x8xf32>)
    -> tensor<1x32x32x8xf32> {
  %0 = stablehlo.convolution(%x, %v) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {pad = [[1, 2], [1, 2]], lhs_dilate = [2, 2]}
    {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x8x8x16xf32>, tensor<3x3x16x8xf32>) -> tensor<1x16x16x8xf32>
  %1 = stablehlo.convolution(%0, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {pad = [[1, 1], [1, 1]], lhs_dilate = [2, 2]}
    {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x16x16x8xf32>, tensor<2x2x8x8xf32>) -> tensor<1x32x32x8xf32>
  return %1 : tensor<1x32x32x8xf32>
}
