// RUN: %gristmill compile %s --target=cuda --emit=gpu | filecheck %s
// RUN: %gristmill compile %s --target=cuda --emit=nvvm | filecheck %s --check-prefix=NVVM
// RUN: %gristmill compile %s --target=cuda --emit=ptx | filecheck %s --check-prefix=PTX

// Four neighbouring elements a thread, which become one 16-byte access; 256 threads a block; the grid strides over the rest.
// CHECK-LABEL: gpu.func @kernel_0_loop(
// CHECK-SAME:    %[[X:[a-z0-9]+]]: memref<4194304xf32> {llvm.align = 16 : i64, llvm.noalias}
// CHECK-SAME:    known_block_size = array<i32: 256, 1, 1>, known_grid_size = array<i32: 3456, 1, 1>
// CHECK:         %[[T:.*]] = gpu.thread_id  x
// CHECK:         %[[B:.*]] = gpu.block_id  x
// CHECK:         scf.for
// CHECK:           memref.load
// CHECK:           arith.addf
// CHECK-COUNT-4:   memref.store %{{.*}}, %[[X:[a-z0-9]+]]
// CHECK:         gpu.return

// NVVM: llvm.func @kernel_0_loop({{.*}}nvvm.kernel{{.*}}nvvm.maxntid = array<i32: 256, 1, 1>
// NVVM: nvvm.read.ptx.sreg.tid.x
// NVVM-NOT: gpu.thread_id

// PTX: .visible .entry kernel_0_loop(
// PTX: .maxntid 256, 1, 1
// PTX-NOT: __local_depot
// PTX: ld.global{{.*}}.v4
// PTX: add.rn.f32
// PTX: st.global.v4
func.func public @main(%x: tensor<4194304xf32>) -> tensor<4194304xf32> {
  %0 = stablehlo.add %x, %x : tensor<4194304xf32>
  return %0 : tensor<4194304xf32>
}
