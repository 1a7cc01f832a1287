// RUN: %gristmill compile %s --emit=kernels | filecheck %s

// A scan over numbers: the sum is in a register, the series is read where it lies, and what is stored is stored into
// the result, which was filled with the carried array once.
// CHECK-LABEL: func.func @kernel_1_computation(%arg0: memref<500xf32>
// CHECK:         memref.store %{{.*}}, %arg4[%{{.*}}] : memref<500xf32>
// CHECK:         scf.while (%{{.*}} = %{{.*}}, %{{.*}} = %{{.*}}) : (i32, f32) -> (i32, f32)
// CHECK:           memref.load %arg0
// CHECK-NOT:       memref.load
// CHECK:           memref.store %{{.*}}, %arg4[%{{.*}}] : memref<500xf32>
// CHECK-NOT:       memref.store
// CHECK:         return
func.func public @main(%x: tensor<500xf32>) -> tensor<500xf32> {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %e = stablehlo.constant dense<0.0> : tensor<500xf32>
  %0:4 = stablehlo.while(%a = %x, %i = %c, %s = %z, %y = %e) : tensor<500xf32>, tensor<i32>, tensor<f32>, tensor<500xf32>
  cond {
    %n = stablehlo.constant dense<500> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %1 = stablehlo.dynamic_slice %a, %i, sizes = [1] : (tensor<500xf32>, tensor<i32>) -> tensor<1xf32>
    %2 = stablehlo.reshape %1 : (tensor<1xf32>) -> tensor<f32>
    %3 = stablehlo.add %s, %2 : tensor<f32>
    %4 = stablehlo.reshape %3 : (tensor<f32>) -> tensor<1xf32>
    %5 = stablehlo.dynamic_update_slice %y, %4, %i : (tensor<500xf32>, tensor<1xf32>, tensor<i32>) -> tensor<500xf32>
    %6 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %a, %6, %3, %5 : tensor<500xf32>, tensor<i32>, tensor<f32>, tensor<500xf32>
  }
  return %0#3 : tensor<500xf32>
}
