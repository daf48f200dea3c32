# SPDX-License-Identifier: Apache-2.0
SHARED_BY_STRIDE: dict = {}
