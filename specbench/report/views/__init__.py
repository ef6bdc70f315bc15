"""What people read of each analysis and each study: its figures as a `Finding`. A trace alone prints itself."""
