// RUN: %gristmill-opt %s > %t && %gristmill-opt %t | filecheck %s
// RUN: %gristmill-opt %s --elide-resources | filecheck %s --check-prefix=ELIDED

// CHECK: dense_resource<weights> : tensor<3xf32>
// CHECK: weights: "0x400000000000803F0000004000004040"
// ELIDED-NOT: dialect_resources
func.func @main() -> tensor<3xf32> {
  %0 = "hlo.constant"() {value = dense_resource<weights> : tensor<3xf32>} : () -> tensor<3xf32>
  return %0 : tensor<3xf32>
}

{-#
  dialect_resources: {
    builtin: {
      weights: "0x040000000000803F0000004000004040"
    }
  }
#-}
