// RUN: %gristmill compile %s --target=cuda --emit=gpu | filecheck %s
// RUN: %gristmill compile %s --target=cuda --emit=ptx | filecheck %s --check-prefix=PTX

// Tiles of 32 x 4 columns and 8 rows of threads; 16 blocks share the rows of a tile. Rows merge pairwise in workgroup
// memory, a barrier each; a second launch merges the blocks.
// CHECK-LABEL: gpu.func @kernel_0_column(
// CHECK-SAME:    workgroup({{.*}} : memref<8x4x32xf32, #gpu.address_space<workgroup>>
// CHECK-SAME:    known_block_size = array<i32: 32, 8, 1>, known_grid_size = array<i32: 128, 1, 1>
// CHECK:         gpu.thread_id y
// CHECK:         gpu.thread_id x
// CHECK:         scf.for {{.*}} step %c8
// CHECK-COUNT-3: gpu.barrier
// CHECK:         memref.view %arg2{{.*}} to memref<16x1x1024xf32>
// CHECK-LABEL: gpu.func @kernel_0_column_1(
// CHECK-SAME:    known_block_size = array<i32: 32, 8, 1>, known_grid_size = array<i32: 8, 1, 1>
// CHECK:         memref.store %{{.*}}, %arg1

// PTX: .visible .entry kernel_0_column(
// PTX-NOT: __local_depot
// PTX: ld.global.nc.v4.b32
// PTX: bar.sync
// PTX: st.global.v4.b32
func.func public @main(%a: tensor<8192x1024xf32>) -> tensor<1024xf32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0] : (tensor<8192x1024xf32>, tensor<f32>) -> tensor<1024xf32>
  return %0 : tensor<1024xf32>
}
