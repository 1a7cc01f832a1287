// RUN: %gristmill compile %s --target=cuda --emit=gpu | filecheck %s
// RUN: %gristmill compile %s --target=cuda --emit=ptx | filecheck %s --check-prefix=PTX

// A first launch copies the operand unless it is the result's buffer; then an element of the update a thread, added
// atomically where indices may repeat.
// CHECK-LABEL: gpu.func @kernel_0_scatter(%arg0: memref<1000x64xf32> {llvm.align = 16 : i64}
// CHECK:         memref.extract_aligned_pointer_as_index %arg0
// CHECK:         memref.extract_aligned_pointer_as_index %arg3
// CHECK:         scf.if
// CHECK-COUNT-4: memref.load
// CHECK-COUNT-4: memref.store
// CHECK-LABEL: gpu.func @kernel_0_scatter_1(
// CHECK-SAME:    known_block_size = array<i32: 256, 1, 1>, known_grid_size = array<i32: 50, 1, 1>
// CHECK:         memref.atomic_rmw addf

// PTX-NOT: __local_depot
// PTX: st.global.v4.b32
// PTX: {{red|atom}}{{.*}}.add.f32
func.func public @main(%a: tensor<1000x64xf32>, %i: tensor<200x1xi32>, %u: tensor<200x64xf32>) -> tensor<1000x64xf32> {
  %0 = "stablehlo.scatter"(%a, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %r = stablehlo.add %x, %y : tensor<f32>
      stablehlo.return %r : tensor<f32>
  }) : (tensor<1000x64xf32>, tensor<200x1xi32>, tensor<200x64xf32>) -> tensor<1000x64xf32>
  return %0 : tensor<1000x64xf32>
}
