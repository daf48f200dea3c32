// SPDX-License-Identifier: Apache-2.0
// libheadgate_blas.so is empty but for its link to OpenBLAS. blas.cc loads it when a product is needed. Packages see
// the link, and wheels put the OpenBLAS in that it names.
