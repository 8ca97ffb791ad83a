"""Everything that talks to NVIDIA's software: NVRTC, the driver, NVML. Importing it loads none of them."""
