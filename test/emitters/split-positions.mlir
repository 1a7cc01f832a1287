// RUN: %gristmill compile %s --emit=kernels | filecheck %s

// A loop over the two last dimensions at once reads at its own position, not at the two that it is split into: LLVM
// would not see that neighbours lie side by side.
// CHECK-LABEL: func.func @kernel_0_row(
// CHECK: %[[AT:.*]] = arith.remui %[[I:.*]], %c32
// CHECK: memref.reinterpret_cast %{{.*}} to offset: [0], sizes: [1, 8, 16, 1024], strides: [131072, 16384, 1024, 1]
// CHECK: memref.load %{{.*}}[%{{.*}}, %{{.*}}, %{{.*}}, %[[I]]] : memref<1x8x16x1024xf32>
func.func public @main(%x: tensor<1x8x16x32x32xf32>) -> tensor<1x8xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.multiply %x, %x : tensor<1x8x16x32x32xf32>
  %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [2, 3, 4]
    : (tensor<1x8x16x32x32xf32>, tensor<f32>) -> tensor<1x8xf32>
  return %1 : tensor<1x8xf32>
}
