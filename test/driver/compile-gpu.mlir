// Every stage of a GPU compilation can be printed; unknown targets and devices are named.
// RUN: %gristmill compile %s --target=cuda:sm_80 --emit=gpu | filecheck %s --check-prefix=GPU
// RUN: %gristmill compile %s --target=cuda:sm_80 --emit=nvvm | filecheck %s --check-prefix=NVVM
// RUN: %gristmill compile %s --target=cuda:sm_80 --emit=ptx | filecheck %s --check-prefix=PTX
// RUN: not %gristmill compile %s --target=cuda:sm_1 2>&1 | filecheck %s --check-prefix=CHIP
// RUN: not %gristmill compile %s --target=abacus 2>&1 | filecheck %s --check-prefix=TARGET
// RUN: not %gristmill compile %s --target=cuda --emit=kernels 2>&1 | filecheck %s --check-prefix=STAGE
// RUN: not %gristmill run %s --random --device=abacus 2>&1 | filecheck %s --check-prefix=DEVICE
// RUN: %gristmill run %s --random --device=simulator | filecheck %s --check-prefix=RESULT

func.func @main(%a: tensor<64xf32>) -> tensor<64xf32> {
  %0 = stablehlo.add %a, %a : tensor<64xf32>
  return %0 : tensor<64xf32>
}

// GPU: gpu.module @kernels
// GPU: gpu.func @kernel_0_loop
// NVVM: llvm.func @kernel_0_loop
// NVVM-SAME: nvvm.kernel
// PTX: .target sm_80
// PTX: .visible .entry kernel_0_loop
// CHIP: gristmill: GPU 'sm_1' is not known; give one of: sm_70
// TARGET: gristmill: target 'abacus' is not known; give cpu, cuda or cuda:CHIP
// STAGE: gristmill: there is no stage 'kernels'; stages: hlo, fused, rt, gpu, nvvm
// DEVICE: gristmill: device 'abacus' is not known; give simulator, cuda or cuda:N
// RESULT: 64xf32
