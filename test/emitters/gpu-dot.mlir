// RUN: %gristmill compile --target=cuda --emit=gpu %s | filecheck %s
// RUN: %gristmill compile --target=cuda --emit=ptx %s | filecheck %s --check-prefix=PTX

// 108 multiprocessors, 16 tiles of 32 by 64: the sum is split, and a second launch adds up the shares and the bias.
// CHECK-LABEL: gpu.func @kernel_0_dot(
// CHECK-SAME: workgroup(%[[S:.*]] : memref<{{[0-9]+}}xi8, #gpu.address_space<workgroup>> {llvm.align = 16 : i64})
// CHECK-SAME: nvvm.minctasm

// Two buffers of each operand's tile, k outermost, over the same bytes as the band of finished rows.
// CHECK-DAG: memref.view %[[S]]{{.*}} to memref<2x[[D:[0-9]+]]x{{[0-9]+}}xf32, #gpu.address_space<workgroup>>
// CHECK-DAG: memref.view %[[S]]{{.*}} to memref<2x[[D]]x{{[0-9]+}}xf32, #gpu.address_space<workgroup>>
// CHECK-DAG: memref.view %[[S]]{{.*}} to memref<{{[0-9]+}}x{{[0-9]+}}xf32, #gpu.address_space<workgroup>>

// A step: fetch the next tiles as vectors, multiply this one's, store the next's to the other buffer.
// CHECK: scf.for
// CHECK: vector.load {{.*}} {alignment = 16 : i64} : memref<{{[0-9]+}}xf32>, vector<4xf32>
// CHECK: vector.load {{.*}} : memref<2x[[D]]x{{[0-9]+}}xf32, #gpu.address_space<workgroup>>, vector<4xf32>
// CHECK: vector.fma
// CHECK: vector.store {{.*}} : memref<2x[[D]]x{{[0-9]+}}xf32, #gpu.address_space<workgroup>>
// CHECK: gpu.barrier
// CHECK: scf.yield

// CHECK-LABEL: gpu.func @kernel_0_dot_1(
// CHECK: memref.load
// CHECK: arith.addf
// CHECK: memref.load %arg2

// PTX-LABEL: .entry kernel_0_dot(
// PTX-NOT: .local
// PTX: ld.global.nc.v4
// PTX: st.shared
// PTX: bar.sync
// PTX: ld.shared.v4
// PTX: fma.rn.f32
func.func @main(%a: tensor<128x2048xf32>, %b: tensor<2048x256xf32>, %bias: tensor<256xf32>) -> tensor<128x256xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<128x2048xf32>, tensor<2048x256xf32>) -> tensor<128x256xf32>
  %1 = stablehlo.broadcast_in_dim %bias, dims = [1] : (tensor<256xf32>) -> tensor<128x256xf32>
  %2 = stablehlo.add %0, %1 : tensor<128x256xf32>
  return %2 : tensor<128x256xf32>
}
