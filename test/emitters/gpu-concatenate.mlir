// RUN: %gristmill compile %s --target=cuda --emit=gpu | filecheck %s
// RUN: %gristmill compile %s --target=cuda --emit=ptx | filecheck %s --check-prefix=PTX

// Units of four elements: the first 8192 threads copy the first part, the others the second.
// CHECK-LABEL: gpu.func @kernel_0_concatenate(
// CHECK-SAME:    known_block_size = array<i32: 256, 1, 1>, known_grid_size = array<i32: 96, 1, 1>
// CHECK:         arith.constant 8192
// CHECK:         scf.if
// CHECK-COUNT-4: memref.reinterpret_cast %arg0 to offset: [0], sizes: [32768]
// CHECK-COUNT-4: memref.store %{{.*}}, %arg2
// CHECK:         else
// CHECK-COUNT-4: memref.reinterpret_cast %arg1 to offset: [0], sizes: [65536]
// CHECK-COUNT-4: memref.store %{{.*}}, %arg2

// PTX-NOT: __local_depot
// PTX: ld.global.nc.v4.b32
// PTX: st.global.v4.b32
func.func public @main(%a: tensor<512x64xf32>, %b: tensor<512x128xf32>) -> tensor<512x192xf32> {
  %0 = stablehlo.concatenate %a, %b, dim = 1 : (tensor<512x64xf32>, tensor<512x128xf32>) -> tensor<512x192xf32>
  return %0 : tensor<512x192xf32>
}
