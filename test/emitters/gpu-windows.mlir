// RUN: %gristmill compile %s --target=cuda --emit=gpu | filecheck %s
// RUN: %gristmill compile %s --target=cuda --emit=ptx | filecheck %s --check-prefix=PTX

// Pooling is a loop over windows, one result a thread. Its gradient takes two launches: windows select, then each element
// gathers from the windows that selected it, so that no two threads write one element.
// CHECK-LABEL: gpu.func @kernel_0_pooling(
// CHECK:         llvm.intr.maximum
// CHECK-LABEL: gpu.func @kernel_1_select_and_scatter(
// CHECK:         %[[POSITIONS:.*]] = memref.view %{{.*}} to memref<8192xi32>
// CHECK:         memref.store %{{.*}}, %[[POSITIONS]]
// CHECK-LABEL: gpu.func @kernel_1_select_and_scatter_1(
// CHECK:         memref.load %{{.*}} : memref<8192xi32>
// CHECK-NOT:     atomic
// CHECK:         memref.store

// PTX-NOT: __local_depot
// PTX-NOT: atom.
func.func public @main(%a: tensor<2x32x32x16xf32>, %s: tensor<2x16x16x16xf32>) -> (tensor<2x16x16x16xf32>, tensor<2x32x32x16xf32>) {
  %n = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = "stablehlo.reduce_window"(%a, %n) <{window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>}> ({
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %m = stablehlo.maximum %x, %y : tensor<f32>
      stablehlo.return %m : tensor<f32>
  }) : (tensor<2x32x32x16xf32>, tensor<f32>) -> tensor<2x16x16x16xf32>
  %1 = "stablehlo.select_and_scatter"(%a, %s, %z) <{window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>}> ({
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %c = stablehlo.compare GE, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
  }, {
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %c = stablehlo.add %x, %y : tensor<f32>
      stablehlo.return %c : tensor<f32>
  }) : (tensor<2x32x32x16xf32>, tensor<2x16x16x16xf32>, tensor<f32>) -> tensor<2x32x32x16xf32>
  return %0, %1 : tensor<2x16x16x16xf32>, tensor<2x32x32x16xf32>
}
