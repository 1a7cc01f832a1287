// A program's LLVM IR has one entry function with the entry ABI; it calls kernels by symbol.
// RUN: %gristmill compile %s --emit=ll -o - | filecheck %s

// CHECK: define void @gristmill_main(ptr {{[^,]*}}, ptr {{[^,]*}}, ptr {{[^,]*}}, ptr {{[^,]*}}, i64 {{[^)]*}})
func.func @main(%x: tensor<16xf32>) -> tensor<16xf32> {
  %0 = stablehlo.add %x, %x : tensor<16xf32>
  return %0 : tensor<16xf32>
}
