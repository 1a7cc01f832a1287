// RUN: %gristmill compile %s --emit=kernels | filecheck %s

// In NCHW the sums of a chunk of a row wait in scratch, pixel by pixel; blocks of them are transposed by shuffles, and
// every store is one of a vector of pixels.
// CHECK-LABEL: func.func @kernel_0_convolution_2(
// CHECK:       memref.view
// CHECK:       vector.store {{.*}} : memref<[[STAGE:[0-9]+]]xf32>, vector<[[L:[0-9]+]]xf32>
// CHECK-NOT:   memref.store
// CHECK:       vector.load {{.*}} : memref<[[STAGE]]xf32>, vector<[[S:[0-9]+]]xf32>
// CHECK:       vector.shuffle
// CHECK:       vector.store {{.*}} : memref<32768xf32>, vector<[[S]]xf32>
// CHECK-NOT:   memref.store
func.func public @main(%x: tensor<1x8x32x32xf32>, %w: tensor<32x8x3x3xf32>) -> tensor<1x32x32x32xf32> {
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1],
    window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<1x8x32x32xf32>, tensor<32x8x3x3xf32>) -> tensor<1x32x32x32xf32>
  return %0 : tensor<1x32x32x32xf32>
}
