// Programmatic dependent launch (sm_90 and above): a kernel may start while the one before it in its stream ends.

//: griddepcontrol_wait
// Waits until the kernels before this one have ended and what they wrote is seen; launched plainly, it goes on at once.
__device__ __forceinline__ void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

//: griddepcontrol_launch_dependents
// Lets the next kernel of the stream start once every block has said so or has left.
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
