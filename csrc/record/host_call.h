#pragma once

#include <ATen/core/stack.h>

#include "graph/op.h"

namespace tiledev {

// Runs an op at once, on CPU tensors that share the buffers' memory: waits for what it touches,
// replaces the arguments on the stack by the results, whose memory becomes that of new buffers.
// Views are refused: their results would not alias.
void run_on_host(const OpTraits& traits, torch::jit::Stack* stack);

// The same for an op that cannot be recorded: counted, and refused if the settings say so.
void fall_back(const OpTraits& traits, torch::jit::Stack* stack, const char* reason);

// Index tensors on the host are copied to the device, as other devices do.
void move_indices_to_device(const OpTraits& traits, torch::jit::Stack* stack);

// A CPU tensor that shares the memory of a device tensor whose value is there.
at::Tensor host_alias(const at::Tensor& tensor);

// Waits for a device tensor's value and returns it as a CPU tensor that shares its memory.
at::Tensor read_out(const at::Tensor& tensor);

}  // namespace tiledev
