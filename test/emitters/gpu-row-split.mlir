// RUN: %gristmill compile %s --target=cuda --emit=gpu | filecheck %s

// Two long rows: 64 blocks each leave partial values in the workspace, a warp for each row merges them.
// CHECK-LABEL: gpu.func @kernel_0_row(
// CHECK-SAME:    known_block_size = array<i32: 256, 1, 1>, known_grid_size = array<i32: 128, 1, 1>
// CHECK:         scf.for
// CHECK:         gpu.barrier
// CHECK:         %[[PARTS:.*]] = memref.view %arg2{{.*}} to memref<128xf32>
// CHECK:         memref.store %{{.*}}, %[[PARTS]]
// CHECK-LABEL: gpu.func @kernel_0_row_1(
// CHECK-SAME:    known_block_size = array<i32: 32, 1, 1>, known_grid_size = array<i32: 2, 1, 1>
// CHECK:         memref.load
// CHECK-COUNT-5: gpu.shuffle xor
// CHECK:         memref.store %{{.*}}, %arg1
func.func public @main(%a: tensor<2x1048576xf32>) -> tensor<2xf32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [1] : (tensor<2x1048576xf32>, tensor<f32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
