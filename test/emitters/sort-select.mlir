// RUN: %gristmill compile %s --emit=kernels | filecheck %s

// The first elements of a row are selected: a buffer of 128 records; a chunk of 64 keys is looked into only if its smallest is
// below the bound.
// CHECK-LABEL: func.func @kernel_0_sort(
// CHECK:         memref.view {{.*}} to memref<128xi64>
// CHECK:         scf.for {{.*}} -> (index, i64)
// CHECK:           scf.if {{.*}} -> (index, i64)
// CHECK:             vector.shuffle
// CHECK:           %[[LEAST:.*]] = scf.for {{.*}} -> (i32)
// CHECK:             arith.minsi
// CHECK:           arith.cmpi slt, %[[LEAST]]
// CHECK:           scf.if {{.*}} -> (index, i64)
// CHECK:             memref.store {{.*}} : memref<128xi64>
func.func public @main(%a: tensor<8x1000xf32>) -> tensor<8x3xf32> {
  %0 = "stablehlo.sort"(%a) ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.compare LT, %x, %y, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }) {dimension = 1 : i64, is_stable = true} : (tensor<8x1000xf32>) -> tensor<8x1000xf32>
  %2 = stablehlo.slice %0 [0:8, 0:3] : (tensor<8x1000xf32>) -> tensor<8x3xf32>
  return %2 : tensor<8x3xf32>
}
