// RUN: %gristmill compile %s --target=cuda --emit=gpu | filecheck %s
// RUN: %gristmill compile %s --target=cuda --emit=ptx | filecheck %s --check-prefix=PTX

// A block a line: tiles of 1024 elements in turn, four a thread. Lanes scan by shuffles; a loop over the warps' totals
// in workgroup memory carries on.
// CHECK-LABEL: gpu.func @kernel_0_cumulative(
// CHECK-SAME:    workgroup(%[[WARPS:[a-z0-9]+]] : memref<8xf32, #gpu.address_space<workgroup>>
// CHECK-SAME:    known_block_size = array<i32: 256, 1, 1>, known_grid_size = array<i32: 4096, 1, 1>
// CHECK:         scf.for {{.*}} step %c1024
// CHECK-COUNT-5:   gpu.shuffle up
// CHECK:           memref.store %{{.*}}, %[[WARPS]]
// CHECK:           gpu.barrier
// CHECK:           scf.for
// CHECK:             memref.load %[[WARPS]]
// CHECK:           gpu.barrier
// CHECK:           gpu.shuffle up

// PTX-DAG: ld.global.nc.v4.b32
// PTX-DAG: shfl.sync.up.b32
// PTX-DAG: st.global.v4.b32
func.func public @main(%a: tensor<4096x4096xf32>) -> tensor<4096x4096xf32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = "stablehlo.reduce_window"(%a, %z) <{window_dimensions = array<i64: 1, 4096>, padding = dense<[[0, 0], [4095, 0]]> : tensor<2x2xi64>}> ({
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %r = stablehlo.add %x, %y : tensor<f32>
      stablehlo.return %r : tensor<f32>
  }) : (tensor<4096x4096xf32>, tensor<f32>) -> tensor<4096x4096xf32>
  return %0 : tensor<4096x4096xf32>
}
