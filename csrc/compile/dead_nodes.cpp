#include "compile/pipeline.h"

namespace tiledev {

// A node lives if a buffer that it writes outlives the graph or is read by a later node that lives.
void find_dead_nodes(Compilation& c) {
  std::vector<uint8_t> wanted(c.print.outlives);
  c.live.assign(c.nodes.size(), 0);
  for (size_t i = c.nodes.size(); i-- > 0;) {
    const uint32_t* access = c.print.accesses.data() + c.first_access[i];
    bool live = false;
    for_each_access(c.nodes[i], [&](const Buffer&, bool, bool writes, bool) {
      live |= writes && wanted[*access];
      ++access;
    });
    if (!live) {
      continue;
    }
    c.live[i] = 1;
    access = c.print.accesses.data() + c.first_access[i];
    for_each_access(c.nodes[i], [&](const Buffer&, bool reads, bool, bool) {
      if (reads) {
        wanted[*access] = 1;
      }
      ++access;
    });
  }
}

}  // namespace tiledev
