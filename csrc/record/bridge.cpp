#include "record/bridge.h"

namespace tiledev {

Bridge& bridge() {
  static Bridge instance;
  return instance;
}

}  // namespace tiledev
