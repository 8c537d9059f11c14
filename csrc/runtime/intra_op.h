#pragma once

namespace tiledev {

// Sets how many threads ATen's kernels may use when called from the calling thread; leaves every
// other thread, and the process-wide setting, as they are.
void set_intra_op_threads(int threads);

}  // namespace tiledev
