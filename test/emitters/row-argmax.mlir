// RUN: %gristmill compile %s --emit=kernels | filecheck %s
// RUN: %gristmill compile %s --emit=ll | filecheck %s --check-prefix=LL

// JAX's argmax is no single operation, but its body depends on the order of values and positions alone: the row is
// searched by vectors, each lane with the best value so far and the column where its block began; then the first of the
// columns that hold the best value. A row that has a NaN is gone over in order.
// CHECK-LABEL: func.func @kernel_0_row
// CHECK:         scf.for {{.*}} vector<[[LANES:[0-9]+]]xf32>
// CHECK:           vector.load {{.*}} vector<[[LANES]]xf32>
// CHECK:           arith.cmpf ogt, {{.*}} : vector<[[LANES]]xf32>
// CHECK:           arith.cmpf uno, {{.*}} : vector<[[LANES]]xf32>
// CHECK:         vector.reduction <maxnumf>
// CHECK:         arith.cmpf oeq
// CHECK:         vector.reduction <minsi>
// CHECK:         scf.if
// CHECK:           scf.for {{.*}} -> (f32, i32)

// LL: define void @kernel_0_row
// LL: fcmp {{olt|ogt}} <{{8|16}} x float>
func.func public @main(%a: tensor<64x1024xf32>) -> tensor<64xi32> {
  %n = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %z = stablehlo.constant dense<0> : tensor<i32>
  %i = stablehlo.iota dim = 1 : tensor<64x1024xi32>
  %0:2 = stablehlo.reduce(%a init: %n), (%i init: %z) across dimensions = [1] : (tensor<64x1024xf32>, tensor<64x1024xi32>, tensor<f32>, tensor<i32>) -> (tensor<64xf32>, tensor<64xi32>)
  reducer(%x: tensor<f32>, %y: tensor<f32>) (%j: tensor<i32>, %k: tensor<i32>) {
    %greater = stablehlo.compare GT, %x, %y, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %nan = stablehlo.compare NE, %x, %x, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %first = stablehlo.or %greater, %nan : tensor<i1>
    %same = stablehlo.compare EQ, %x, %y, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %before = stablehlo.compare LT, %j, %k, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %tie = stablehlo.and %same, %before : tensor<i1>
    %index = stablehlo.or %first, %tie : tensor<i1>
    %2 = stablehlo.select %first, %x, %y : tensor<i1>, tensor<f32>
    %3 = stablehlo.select %index, %j, %k : tensor<i1>, tensor<i32>
    stablehlo.return %2, %3 : tensor<f32>, tensor<i32>
  }
  return %0#1 : tensor<64xi32>
}
