// RUN: %gristmill compile %s --emit=kernels | filecheck %s

// Blocks are loaded as vectors, transposed by shuffles and stored as vectors.
// CHECK-LABEL: func.func @kernel_0_transpose
// CHECK:         vector.load %arg0{{.*}} : memref<128x64xf32>, vector<[[V:8|16]]xf32>
// CHECK:         vector.shuffle
// CHECK:         vector.store %{{.*}}, %arg1{{.*}} : memref<64x128xf32>, vector<[[V]]xf32>
func.func public @main(%a: tensor<128x64xf32>) -> tensor<64x128xf32> {
  %0 = stablehlo.transpose %a, dims = [1, 0] : (tensor<128x64xf32>) -> tensor<64x128xf32>
  return %0 : tensor<64x128xf32>
}
