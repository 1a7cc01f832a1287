// One program at every stage of the pipeline.
// RUN: %gristmill compile %s --emit=hlo | filecheck %s --check-prefix=HLO
// RUN: %gristmill compile %s --emit=fused | filecheck %s --check-prefix=FUSED
// RUN: %gristmill compile %s --emit=rt | filecheck %s --check-prefix=RT
// RUN: %gristmill compile %s --emit=kernels | filecheck %s --check-prefix=KERNELS
// RUN: %gristmill compile %s --emit=llvm | filecheck %s --check-prefix=LLVM
// RUN: %gristmill compile %s --emit=ll | filecheck %s --check-prefix=LL
// RUN: %gristmill compile %s --emit=asm | filecheck %s --check-prefix=ASM

// HLO-LABEL: func.func public @main
// HLO: "hlov.reduce"{{.*}}to_apply = @
// HLO: "hlo.exponential"

// The whole softmax is one kernel of the row kind.
// FUSED-LABEL: func.func public @main
// FUSED: "hlov.fusion"
// FUSED-SAME: kind = "row"
// FUSED-NOT: "hlov.fusion"
// FUSED: return

// RT: rtv.launch
// RT-SAME: num_arguments = 1
// RT-NOT: rtv.launch

// KERNELS: func.func @{{.*}}memref<64x512xf32>
// KERNELS: scf.for

// LLVM: llvm.func @gristmill_main
// LLVM: llvm.call

// LL: target triple
// LL: define {{.*}}@gristmill_main
// LL: x float>

// ASM: gristmill_main:

func.func @main(%x: tensor<64x512xf32>) -> tensor<64x512xf32> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %max = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [1]
    : (tensor<64x512xf32>, tensor<f32>) -> tensor<64xf32>
  %maxes = stablehlo.broadcast_in_dim %max, dims = [0] : (tensor<64xf32>) -> tensor<64x512xf32>
  %shifted = stablehlo.subtract %x, %maxes : tensor<64x512xf32>
  %e = stablehlo.exponential %shifted : tensor<64x512xf32>
  %sum = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1]
    : (tensor<64x512xf32>, tensor<f32>) -> tensor<64xf32>
  %sums = stablehlo.broadcast_in_dim %sum, dims = [0] : (tensor<64xf32>) -> tensor<64x512xf32>
  %result = stablehlo.divide %e, %sums : tensor<64x512xf32>
  return %result : tensor<64x512xf32>
}
