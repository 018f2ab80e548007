// Copies of a node's state to host memory as the writer behind sees them (write_behind.h): it asks for them and need
// not know of devices. HostCopies makes them.
//
// Threads: with the prefix cache's mutex held.
#pragma once

#include "tree/node_state.h"

namespace kvtrie {

class Copies {
 public:
  virtual bool is_copied(const Node* node) const = 0;  // nothing of it is on the device only
  // Copies of state that is on the device only; false: they did not fit. Nothing is lost for it, or, with `below`, only
  // what is not wanted, and nothing on the path to that.
  virtual bool make_copies(Node* node, const Node* below) = 0;
  virtual void leave_sealing(const BlobPtr& blob) = 0;  // the queue takes its checksums

 protected:
  ~Copies() = default;
};

}  // namespace kvtrie
