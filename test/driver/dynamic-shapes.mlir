// RUN: %gristmill compile %s --emit=hlo --shape 1=2x3 --value 0=6 | filecheck %s
// RUN: not %gristmill compile %s --emit=hlo --value 0=6 2>&1 | filecheck %s --check-prefix=SHAPE
// RUN: not %gristmill compile %s --emit=hlo --shape arg1=2x3 2>&1 | filecheck %s --check-prefix=VALUE
// RUN: not %gristmill compile %s --emit=hlo --shape arg1=2x3 --value 0=5 2>&1 | filecheck %s --check-prefix=MISFIT
// RUN: %gristmill run %s --random --shape 1=2x3 --value 0=6 | filecheck %s --check-prefix=RANDOM

// CHECK: func.func public @main(%{{.*}}: tensor<1xi64>, %[[X:.*]]: tensor<2x3xf32>) -> tensor<6xf32>
// CHECK-NEXT: %[[R:.*]] = "hlo.reshape"(%[[X]])
// CHECK-NEXT: return %[[R]]
// SHAPE: give --shape arg1=... (f32[?, ?])
// VALUE: give --value arg0=N (i64[1])
// MISFIT: the shapes do not fit the program: {{.*}}dynamic-shapes.mlir:{{[0-9]+}}:{{[0-9]+}}:
// RANDOM: output0: 6xf32
func.func @main(%size: tensor<1xi64>, %x: tensor<?x?xf32>) -> tensor<?xf32> {
  %0 = stablehlo.dynamic_reshape %x, %size : (tensor<?x?xf32>, tensor<1xi64>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}
