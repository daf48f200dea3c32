// SPDX-License-Identifier: Apache-2.0
// libheadgate_blas.so is empty but for its link to OpenBLAS. blas.cc loads it when a product is needed. Packaging tools
// read the link, and wheels bundle the OpenBLAS that it names.
