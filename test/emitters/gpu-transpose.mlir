// RUN: %gristmill compile %s --target=cuda --emit=gpu | filecheck %s
// RUN: %gristmill compile %s --target=cuda --emit=ptx | filecheck %s --check-prefix=PTX

// 32 x 32 tiles whose rows have one element more; a warp reads a row of the operand, then writes one of the result.
// CHECK-LABEL: gpu.func @kernel_0_transpose(
// CHECK-SAME:    workgroup(%[[TILE:[a-z0-9]+]] : memref<32x33xf32, #gpu.address_space<workgroup>>
// CHECK-SAME:    known_block_size = array<i32: 32, 8, 1>, known_grid_size = array<i32: 2048, 1, 1>
// CHECK-COUNT-4: memref.store %{{.*}}, %[[TILE]]
// CHECK:         gpu.barrier
// CHECK:         memref.load %[[TILE]]
// CHECK:         memref.store %{{.*}}, %arg1

// PTX: .visible .entry kernel_0_transpose(
// PTX-NOT: __local_depot
// PTX: st.shared
// PTX: bar.sync
// PTX: ld.shared
func.func public @main(%a: tensor<1024x2048xf32>) -> tensor<2048x1024xf32> {
  %0 = stablehlo.transpose %a, dims = [1, 0] : (tensor<1024x2048xf32>) -> tensor<2048x1024xf32>
  return %0 : tensor<2048x1024xf32>
}
