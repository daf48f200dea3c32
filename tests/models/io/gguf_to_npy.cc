// SPDX-License-Identifier: Apache-2.0
// gguf_to_npy FILE DIR: writes each tensor of a GGUF file in f32 to DIR/NAME.npy.

#include <cstdio>
#include <exception>
#include <string>

#include "models/io/gguf.hpp"
#include "models/io/npy.hpp"

int main(int argc, char** argv) {
  using namespace headgate;
  if (argc != 3) return 2;
  try {
    const io::GgufFile file(argv[1]);
    io::NpyWriter writer;
    for (const io::GgufTensor& tensor : file.tensors()) {
      const io::Array array = io::make_array(DType::f32, tensor.shape);
      file.read_f32(tensor, reinterpret_cast<float*>(array.data.get()));
      writer.add(std::string(argv[2]) + "/" + tensor.name + ".npy", array);
    }
    writer.commit();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gguf_to_npy: %s\n", error.what());
    return 1;
  }
  return 0;
}
