// RUN: %gristmill compile %s --emit=kernels | filecheck %s
// RUN: %gristmill compile %s --emit=ll | filecheck %s --check-prefix=LL

// JAX's argmax is no single operation, but commutes where nothing is NaN: it is accumulated in lanes, each a comparison of
// its own, and once more in order for a row that has a NaN.
// CHECK-LABEL: func.func @kernel_0_row
// CHECK:         memref.view {{.*}} to memref<32xf32>
// CHECK:         memref.view {{.*}} to memref<32xi32>
// CHECK:         arith.cmpf ogt
// CHECK:         arith.select

// LL: define void @kernel_0_row
// LL: fcmp ogt <{{8|16}} x float>
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
