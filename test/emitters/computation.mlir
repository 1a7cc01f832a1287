// RUN: %gristmill compile %s --emit=kernels | filecheck %s

// A loop over scalars keeps them in registers: no memory is touched inside it.
// CHECK-LABEL: func.func @kernel_0_computation
// CHECK:         memref.load %arg0
// CHECK:         scf.while (%{{.*}} = %{{.*}}, %{{.*}} = %{{.*}}) : (i32, f32) -> (i32, f32)
// CHECK-NOT:       memref
// CHECK:           scf.condition
// CHECK-NOT:       memref
// CHECK:           arith.mulf
// CHECK-NOT:       memref
// CHECK:           scf.yield
// CHECK:         memref.store
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %c, %y = %x) : tensor<i32>, tensor<f32>
  cond {
    %n = stablehlo.constant dense<100> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %1 = stablehlo.add %i, %one : tensor<i32>
    %2 = stablehlo.multiply %y, %y : tensor<f32>
    stablehlo.return %1, %2 : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}
