// RUN: %gristmill compile %s --emit=kernels | filecheck %s

// Wherever the operand begins, groups of blocks begin where its lines do; they are moved inside it at its ends.
// CHECK-LABEL: func.func @kernel_0_transpose
// CHECK:         %[[AT:.*]] = memref.extract_aligned_pointer_as_index
// CHECK:         %[[FIRST:.*]] = arith.addi %[[AT]], %{{.*}}
// CHECK:         %[[PAST:.*]] = arith.remui %[[FIRST]], %{{.*}}
// CHECK:         %[[ELEMENTS:.*]] = arith.divui %[[PAST]], %{{.*}}
// CHECK:         arith.subi %{{.*}}, %[[ELEMENTS]]
// CHECK:         %[[MOST:.*]] = arith.constant 496 : index
// CHECK:         arith.minsi %{{.*}}, %[[MOST]]
// CHECK:         arith.maxsi
func.func public @main(%a: tensor<100x512xf32>) -> tensor<512x100xf32> {
  %0 = stablehlo.transpose %a, dims = [1, 0] : (tensor<100x512xf32>) -> tensor<512x100xf32>
  return %0 : tensor<512x100xf32>
}
