// RUN: %gristmill compile %s --emit=kernels | filecheck %s

// While a row of the table is copied the next one is asked for, at its clamped place; after the last row the last again.
// CHECK-LABEL: func.func @kernel_0_loop(%arg0: memref<50x256xf32>
// CHECK:       scf.for %[[ROW:.*]] = %arg
// CHECK:         %[[NEXT:.*]] = arith.addi %[[ROW]],
// CHECK:         arith.constant 63 : index
// CHECK:         %[[LAST:.*]] = arith.minsi %[[NEXT]],
// CHECK:         memref.load %arg1[%[[LAST]],
// CHECK-COUNT-16: memref.prefetch {{.*}}, read
// CHECK-NOT:     memref.prefetch
// CHECK:         scf.for
// CHECK:           memref.load %arg0
func.func @main(%table: tensor<50x256xf32>, %rows: tensor<64x1xi32>) -> tensor<64x256xf32> {
  %0 = "stablehlo.gather"(%table, %rows) <{
    dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0],
      index_vector_dim = 1>, slice_sizes = array<i64: 1, 256>}>
    : (tensor<50x256xf32>, tensor<64x1xi32>) -> tensor<64x256xf32>
  return %0 : tensor<64x256xf32>
}
