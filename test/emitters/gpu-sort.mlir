// RUN: %gristmill compile %s --target=cuda --emit=gpu | filecheck %s
// RUN: %gristmill compile %s --target=cuda --emit=ptx | filecheck %s --check-prefix=PTX

// Records are an integer key and the position. Blocks sort chunks of 2048 in workgroup memory, two launches merge runs by
// binary search; the last one follows positions to the values.
// CHECK-LABEL: gpu.func @kernel_0_sort(
// CHECK-SAME:    workgroup({{.*}} : memref<2048xi32, #gpu.address_space<workgroup>>{{.*}} : memref<2048xi32, #gpu.address_space<workgroup>>
// CHECK-SAME:    known_block_size = array<i32: 1024, 1, 1>, known_grid_size = array<i32: 4, 1, 1>
// CHECK:         gpu.barrier
// CHECK:         scf.for
// CHECK:           gpu.barrier
// CHECK:           scf.for
// CHECK:             gpu.barrier
// CHECK-LABEL: gpu.func @kernel_0_sort_1(
// CHECK:         scf.while
// CHECK-LABEL: gpu.func @kernel_0_sort_2(
// CHECK:         scf.while
// CHECK:         memref.load %arg0
// CHECK:         memref.store %{{.*}}, %arg1

// PTX-NOT: __local_depot
// PTX: ld.shared
// PTX: bar.sync
func.func public @main(%a: tensor<8000xf32>) -> tensor<8000xf32> {
  %0 = "stablehlo.sort"(%a) <{dimension = 0 : i64, is_stable = true}> ({
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %c = stablehlo.compare LT, %x, %y, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
  }) : (tensor<8000xf32>) -> tensor<8000xf32>
  return %0 : tensor<8000xf32>
}
