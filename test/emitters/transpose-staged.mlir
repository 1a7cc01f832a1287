// RUN: %gristmill compile %s --emit=kernels | filecheck %s

// What is fused into the transpose is computed in a stage, in the operand's order. Rows of a result that are 4 KiB apart are
// collected in others, one a group, and stored while the next group is transposed.
// CHECK-LABEL: func.func @kernel_0_transpose
// CHECK-SAME:    memref<24576xi8>
// CHECK:         arith.mulf
// CHECK-NEXT:    memref.store {{.*}} : memref<4096xf32>
// CHECK:         vector.load {{.*}} : memref<4096xf32>
// CHECK:         vector.shuffle
// CHECK:         vector.store {{.*}} : memref<2048xf32>
// CHECK:         vector.load {{.*}} : memref<2048xf32>
// CHECK:         vector.store {{.*}} : memref<131072xf32>
func.func public @main(%a: tensor<1024x128xf32>) -> tensor<128x1024xf32> {
  %0 = stablehlo.multiply %a, %a : tensor<1024x128xf32>
  %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<1024x128xf32>) -> tensor<128x1024xf32>
  return %1 : tensor<128x1024xf32>
}
